package web

import (
	"net/http"
	"slices"
)

// The paths that a service answers by itself.
const (
	LivePath    = "/healthz"
	ReadyPath   = "/readyz"
	MetricsPath = "/metrics"
)

// Routes are those of a server: the framework's own, and others, which have middleware.
type Routes struct {
	*http.ServeMux
	own        []string // patterns
	middleware []func(http.Handler) http.Handler
}

// NewRoutes returns none.
func NewRoutes() *Routes { return &Routes{ServeMux: http.NewServeMux()} }

// HandleOwn adds a route that goes without middleware, which might ask a probe, Prometheus or the broker for a login.
func (r *Routes) HandleOwn(pattern string, h http.Handler) {
	r.Handle(pattern, h)
	r.own = append(r.own, pattern)
}

// Use wraps the routes in middleware, the first one outermost.
func (r *Routes) Use(middleware ...func(http.Handler) http.Handler) {
	r.middleware = append(r.middleware, middleware...)
}

// Wrapped is what serves the routes.
func (r *Routes) Wrapped() http.Handler {
	wrapped := http.Handler(r.ServeMux)
	for _, m := range slices.Backward(r.middleware) {
		wrapped = m(wrapped)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, req.Pattern = r.Handler(req) // for middleware, and for the span, which does not see the request that middleware passes on
		if slices.Contains(r.own, req.Pattern) {
			r.ServeHTTP(w, req)
			return
		}
		wrapped.ServeHTTP(w, req)
	})
}
