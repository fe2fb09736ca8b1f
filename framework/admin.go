package framework

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/console"
	"github.com/millrace-go/millrace/framework/internal/web"
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

// newAdmin makes the server for operators. It returns what is to be closed also beside an error.
func (s *Service) newAdmin(ctx context.Context) (*web.Operators, error) {
	a, err := web.NewOperators(ctx, s.cfg.Admin.web(), s.cfg.Admin.Address, s.log)
	if err != nil {
		return nil, err
	}
	a.HandleFunc("GET "+catalogPath, s.serveCatalog)
	if s.bare {
		a.HandleFunc(consolePath+"/", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "the console shows what is in the database: "+ErrNoPostgres.Error(), http.StatusNotImplemented)
		})
		return a, nil
	}
	own := s.pool.Config() // for a pool of its own: pages are read while handlers have all connections of the service's
	own.MaxConns, own.MinConns, own.MinIdleConns = consoleConnections, 0, 0
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), own) // which connects when it is asked
	if err != nil {
		return a, fmt.Errorf("make the pool of the console: %w", err)
	}
	a.OnClose(pool.Close)
	cfg := s.cfg.Admin.Console.of(s.cfg.Service, pool, s.cfg.Postgres.Schema)
	if cfg.Logger == nil {
		cfg.Logger = s.log
	}
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
