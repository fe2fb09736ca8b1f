package framework

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgdsn"
	"github.com/millrace-go/millrace/internal/tables"
	"github.com/millrace-go/millrace/transport"
)

// connectTimeout bounds the connecting to database and broker together; New promises 5 s.
const connectTimeout = 3500 * time.Millisecond

// listen listens at the address that the field of the configuration has.
func listen(ctx context.Context, field, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen at %s: another process does: stop that one, or change %s: %w", address, field, err)
	case err != nil:
		return nil, fmt.Errorf("listen at %s: want %s to be host:port of this machine: %w", address, field, err)
	}
	return l, nil
}

func connect(ctx context.Context, cfg Postgres) (*pgxpool.Pool, error) {
	parsed, err := pgdsn.Parse(cfg.DSN)
	if err != nil {
		return nil, fmt.Errorf("Config.Postgres.DSN is %w", err)
	}
	parsed.MaxConns = cfg.connections(parsed)
	pool, err := pgxpool.NewWithConfig(ctx, parsed)
	if err == nil {
		err = pool.Ping(ctx)
	}
	if err != nil {
		if pool != nil {
			pool.Close()
		}
		err = fmt.Errorf("connect to PostgreSQL at %s:%d: see that it runs there and takes this user, or change Config.Postgres.DSN (postgres.dsn): %w",
			parsed.ConnConfig.Host, parsed.ConnConfig.Port, err)
		if cfg.DSN == "" {
			err = fmt.Errorf("%w\nNo DSN is set. %s", err, fromDev)
		}
		return nil, err
	}
	return pool, nil
}

// connections is how many connections the pool has at most.
func (p Postgres) connections(parsed *pgxpool.Config) int32 {
	switch {
	case p.MaxConnections > 0:
		return p.MaxConnections
	case strings.Contains(p.DSN, "pool_max_conns"):
		return parsed.MaxConns
	}
	return defaultConnections
}

func migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	all, err := tables.Migrators(pool, schema)
	if err != nil {
		return err
	}
	for _, m := range all {
		if err := m.Up(ctx); err != nil {
			return err
		}
	}
	return nil
}

func checkSchema(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	all, err := tables.Migrators(pool, schema)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range all {
		errs = append(errs, m.Check(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w\n(or set Config.Postgres.Migrate (postgres.migrate), and the service does it by itself)", err)
	}
	return nil
}

// open connects to the broker.
func (s *Service) open(ctx context.Context, settings transport.Settings) (transport.Transport, error) {
	t, err := settings.Open(ctx, transport.Environment{
		DrainTimeout: s.cfg.ShutdownTimeout, Logger: s.log,
		MeterProvider: s.telemetry.meter, TracerProvider: s.telemetry.tracer, Propagator: s.telemetry.propagator,
	})
	if pinged, ok := t.(transport.Pinger); err == nil && ok {
		if err = pinged.Ping(ctx); err != nil {
			err = errors.Join(err, t.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the broker: see that it runs, and that the section %s of the configuration (%s_%s_* in the environment) says where: %w",
			s.cfg.Broker, envPrefix, strings.ToUpper(s.cfg.Broker), err)
	}
	return t, nil
}

// closePool waits for connections that are in use, but not for ever.
func closePool(pool *pgxpool.Pool, timeout time.Duration) error {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("close the pool: %d of its connections are still in use after %s: somebody holds a transaction", pool.Stat().AcquiredConns(), timeout)
	}
}
