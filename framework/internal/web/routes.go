package web

import (
	"net/http"
	"slices"
)

// The paths of health checks and metrics.
const (
	LivePath    = "/healthz"
	ReadyPath   = "/readyz"
	MetricsPath = "/metrics"
)

// Routes are the routes of a server. The framework's own routes bypass the middleware.
type Routes struct {
	*http.ServeMux
	own        []string // patterns
	middleware []func(http.Handler) http.Handler
}

// NewRoutes returns empty Routes.
func NewRoutes() *Routes { return &Routes{ServeMux: http.NewServeMux()} }

// HandleOwn adds a route that bypasses the middleware. Middleware might ask a probe, Prometheus or the broker for a login.
func (r *Routes) HandleOwn(pattern string, h http.Handler) {
	r.Handle(pattern, h)
	r.own = append(r.own, pattern)
}

// Use wraps the routes in middleware, the first one outermost.
func (r *Routes) Use(middleware ...func(http.Handler) http.Handler) {
	r.middleware = append(r.middleware, middleware...)
}

// Wrapped returns the handler that serves the routes.
func (r *Routes) Wrapped() http.Handler {
	wrapped := http.Handler(r.ServeMux)
	for _, m := range slices.Backward(r.middleware) {
		wrapped = m(wrapped)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, req.Pattern = r.Handler(req) // set here for middleware, and for the span, which does not see a request that middleware replaces
		if slices.Contains(r.own, req.Pattern) {
			r.ServeHTTP(w, req)
			return
		}
		wrapped.ServeHTTP(w, req)
	})
}
