package framework

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/console"
)

// Admin configures a second HTTP server, which is for operators: it serves the console at /console/, /metrics, /healthz,
// /readyz with what the log has of each failing check, and /catalog: see Service.Catalog. Let only operators, probes and Prometheus reach it.
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
	// Config is the console's; its database is the service's.
	console.Config `without:"Databases,Prefix"`
}

const (
	consolePath = "/console"

	// consoleConnections are those that pages and one action use at once.
	consoleConnections = 5
)

func (c Console) of(service string, pool *pgxpool.Pool, schema string) console.Config {
	c.Prefix = consolePath
	c.Databases = []console.Database{{Name: consoleName(service), Pool: pool, Schema: schema}}
	return c.Config
}

// consoleName is the service's name as the console's URLs have it.
func consoleName(service string) string {
	name := strings.NewReplacer(".", "-", "_", "-").Replace(strings.ToLower(service))
	if name = name[:min(len(name), 40)]; name == "static" {
		return "static-service"
	}
	return name
}

// admin is the server for operators. A nil one serves nothing.
type admin struct {
	listener net.Listener
	mux      *routes
	server   *http.Server
	console  *console.Console
	pool     *pgxpool.Pool // of its own: pages are read while handlers have all connections of the service's pool
}

// newAdmin listens, and returns what close closes also beside an error.
func (s *Service) newAdmin(ctx context.Context) (a *admin, err error) {
	a = &admin{mux: newRoutes()}
	if a.listener, err = listen(ctx, "Config.Admin.Address (admin.address)", s.cfg.Admin.Address); err != nil {
		return a, err
	}
	if a.server, err = s.cfg.Admin.server("Admin", "admin", s.log); err != nil {
		return a, err
	}
	a.mux.HandleFunc("GET "+catalogPath, s.serveCatalog)
	if s.bare {
		a.mux.HandleFunc(consolePath+"/", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "the console shows what is in the database: "+ErrNoPostgres.Error(), http.StatusNotImplemented)
		})
		return a, nil
	}
	own := s.pool.Config()
	own.MaxConns, own.MinConns, own.MinIdleConns = consoleConnections, 0, 0
	if a.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), own); err != nil { // which connects when it is asked
		return a, fmt.Errorf("make the pool of the console: %w", err)
	}
	cfg := s.cfg.Admin.Console.of(s.cfg.Service, a.pool, s.cfg.Postgres.Schema)
	if cfg.Logger == nil {
		cfg.Logger = s.log
	}
	if a.console, err = console.New(cfg); err != nil {
		return a, err
	}
	a.mux.Handle(consolePath+"/", a.console)
	a.mux.Handle("GET /{$}", http.RedirectHandler(consolePath+"/", http.StatusSeeOther))
	return a, nil
}

// serve serves until end is called.
func (a *admin) serve(log *slog.Logger) (end func()) {
	if a == nil {
		return func() {}
	}
	if a.console != nil {
		a.server.RegisterOnShutdown(a.console.Close)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := serve(a.server, a.listener, a.mux.handler()); err != nil {
			log.Error("the server for operators has ended", slog.Any("error", err))
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), adminPatience)
		defer cancel()
		if a.server.Shutdown(ctx) != nil {
			_ = a.server.Close() // an operator's request must not hold up the end of the service
		}
		<-ended
	}
}

// adminPatience is how long requests of operators may take to end with the service.
const adminPatience = 5 * time.Second

// close closes what newAdmin has made.
func (a *admin) close() {
	if a == nil {
		return
	}
	if a.listener != nil {
		_ = a.listener.Close() // which serve has closed already
	}
	if a.console != nil {
		a.console.Close()
	}
	if a.pool != nil {
		a.pool.Close()
	}
}
