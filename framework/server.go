package framework

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/console"
	"github.com/millrace-go/millrace/framework/internal/broker"
	"github.com/millrace-go/millrace/framework/internal/web"
	"github.com/millrace-go/millrace/internal/service"
)

// Server configures one of a service's HTTP servers.
type Server struct {
	// ReadHeaderTimeout is how long a request's header may take. Default: 10 s.
	ReadHeaderTimeout time.Duration
	// ReadTimeout is how long a request may take to arrive, header and body. It does not bound its handler. A handler whose clients send
	// for longer switches it off for its request: http.NewResponseController(w).SetReadDeadline(time.Time{}). Default: 1 min.
	ReadTimeout time.Duration
	// WriteTimeout is how long a request may take from the end of its header to the end of its answer: its handler's time counts. The
	// console's live pages and push requests are exempt. A handler that streams sets its own limit, by http.ResponseController.
	// Default: 0, no limit.
	WriteTimeout time.Duration
	// IdleTimeout is how long a connection is kept for the next request. Make it longer than the load balancer's. Default: 2 min.
	IdleTimeout time.Duration
	// TLS makes the server an HTTPS server. Default: the server speaks HTTP.
	TLS ServerTLS
}

// ServerTLS names the files of a server's certificate. The server reads replaced files within a second, without a restart.
type ServerTLS struct {
	// CertFile and KeyFile hold the certificate with its chain, and its key, in PEM. Default: "", no TLS.
	CertFile string
	KeyFile  string
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c Server) WithDefaults() Server {
	c.ReadHeaderTimeout = cmp.Or(c.ReadHeaderTimeout, 10*time.Second)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, time.Minute)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 2*time.Minute)
	return c
}

// Validate reports everything that is wrong with the configuration. It expects one that has its defaults.
func (c Server) Validate() error {
	return c.web().Validate()
}

func (c Server) web() web.Config {
	return web.Config{
		ReadHeaderTimeout: c.ReadHeaderTimeout, ReadTimeout: c.ReadTimeout, WriteTimeout: c.WriteTimeout, IdleTimeout: c.IdleTimeout,
		CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile,
	}
}

// Admin configures a second HTTP server, which is for operators. It serves the console at /console/, /metrics, /healthz, /readyz
// with the logged cause of each failing check, and /catalog (see Service.Catalog). Let only operators, probes and Prometheus
// reach it.
type Admin struct {
	// Address is host:port, with port 0 for any. Then the service's own server has no /metrics, and its /readyz gives no reasons.
	// Default: "", no such server.
	Address string
	// Server configures timeouts and TLS.
	Server
	// Console configures the operator's console.
	Console Console
}

// Console configures the console of a service.
type Console struct {
	// Config configures the console; the service sets the database and the path.
	console.Config `without:"Databases,Brokers,Prefix"`
}

const (
	consolePath = "/console"

	// consoleConnections is the size of the console's pool: enough for its pages and one action at the same time.
	consoleConnections = 5
)

func (c Console) of(name string, pool *pgxpool.Pool, schema string) console.Config {
	c.Prefix = consolePath
	c.Databases = []console.Database{{Name: service.ConsoleName(name), Pool: pool, Schema: schema}}
	return c.Config
}

// newAdmin makes the server for operators. If it returns a server with an error, the caller closes the server.
func (s *Service) newAdmin(ctx context.Context) (*web.Operators, error) {
	a, err := web.NewOperators(ctx, s.cfg.Admin.web(), s.cfg.Admin.Address, s.log)
	if err != nil {
		return nil, err
	}
	a.HandleFunc("GET "+catalogPath, s.serveCatalog)
	if s.bare {
		a.Handle(consolePath+"/", web.NotImplemented("the console shows what is in the database", ErrNoPostgres))
		return a, nil
	}
	own := s.pool.Config() // a pool of its own, so that pages load while handlers use all of the service's connections
	own.MaxConns, own.MinConns, own.MinIdleConns = consoleConnections, 0, 0
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), own) // it connects on first use
	if err != nil {
		return a, fmt.Errorf("make the pool of the console: %w", err)
	}
	a.OnClose(pool.Close)
	cfg := s.cfg.Admin.Console.of(s.cfg.Service, pool, s.cfg.Postgres.Schema)
	cfg.Logger, cfg.Brokers = cmp.Or(cfg.Logger, s.log), broker.Seen(s.transport, s.cfg.Settings, s.subscriptions)
	pages, err := console.New(cfg)
	if err != nil {
		return a, err
	}
	a.OnShutdown(pages.Close)
	a.OnClose(pages.Close)
	a.Handle(consolePath+"/", pages)
	a.Handle("GET /{$}", http.RedirectHandler(consolePath+"/", http.StatusSeeOther))
	return a, nil
}

// Middleware wraps a handler of HTTP requests.
type Middleware = func(http.Handler) http.Handler

// Use wraps the routes of HTTP in middleware, the first one outermost. A request passes the trace, the middleware and then the
// route with its own wrappers, such as Keys. In middleware the request's context works for Publish, Tx and effects, and its
// Pattern is the route. Middleware runs before the scope of an idempotency key is determined, and a request that it refuses
// leaves its key unused.
//
// The framework's own routes pass no middleware: /healthz, /readyz, /metrics, and those of push subscriptions. The server for
// operators has middleware of its own: see UseAdmin. Call Use before Run.
func (s *Service) Use(middleware ...Middleware) {
	s.mux.Use(middleware...)
}

// UseAdmin wraps the console and /catalog on the server for operators in middleware, the first one outermost. Middleware runs
// before Console.Authorize. /healthz, /readyz and /metrics have none. Without Config.Admin.Address UseAdmin does nothing. Call it
// before Run.
func (s *Service) UseAdmin(middleware ...Middleware) {
	if s.admin != nil {
		s.admin.Use(middleware...)
	}
}
