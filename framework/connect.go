package framework

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgdsn"
	"github.com/millrace-go/millrace/internal/tables"
	"github.com/millrace-go/millrace/transport"
)

// connectTimeout bounds the connecting to database and broker together; New promises 5 s.
const connectTimeout = 3500 * time.Millisecond

// openDatabase connects to the database, in connecting, and sees to its tables. The pool is there to be closed also beside an error.
func (s *Service) openDatabase(ctx, connecting context.Context) (err error) {
	if s.bare {
		s.log.InfoContext(ctx, "postgres.disabled is set: handlers consume and publish in transactions of the broker alone", "broker", s.cfg.Broker)
		s.pool, err = noDatabase()
		return err
	}
	if s.pool, err = connect(connecting, s.cfg.Postgres); err != nil {
		return err
	}
	if s.cfg.Postgres.Migrate {
		if err := migrate(ctx, s.pool, s.cfg.Postgres.Schema); err != nil {
			return err
		}
		again, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		connecting = again
	}
	return checkSchema(connecting, s.pool, s.cfg.Postgres.Schema)
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
		err = fmt.Errorf("connect to PostgreSQL at %s:%d: %s, or change Config.Postgres.DSN (postgres.dsn): %w",
			parsed.ConnConfig.Host, parsed.ConnConfig.Port, adviceOn(err), err)
		if cfg.DSN == "" {
			err = fmt.Errorf("%w\nNo DSN is set. %s\nA service on Kafka with delivery: transactional can do without: set postgres.disabled.", err, fromDev)
		}
		return nil, err
	}
	return pool, nil
}

// adviceOn is what else than the DSN may be changed to connect to PostgreSQL.
func adviceOn(err error) string {
	var refused *pgconn.PgError
	errors.As(err, &refused)
	switch {
	case refused == nil:
		return "see that it runs there and takes this user"
	case refused.Code == "3D000": // invalid_catalog_name
		return "create the database"
	case refused.Code == "53300": // too_many_connections
		return "raise the limit of the server, the role or the database, lower postgres.max_connections of the services"
	}
	return "see that it takes this user with this password"
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
		err := m.Check(ctx)
		if denied(err) {
			return withGrants(err) // so do the others
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w\n(or set Config.Postgres.Migrate (postgres.migrate), and the service does it by itself)", err)
	}
	return nil
}

// denied tells whether the role lacks a privilege.
func denied(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "42501" // insufficient_privilege
}

// withGrants adds the remedy to an error of a role that lacks a privilege.
func withGrants(err error) error {
	if !denied(err) {
		return err
	}
	return fmt.Errorf("%w\n(grant the role of Config.Postgres.DSN (postgres.dsn) what a service needs: "+
		"millrace migrate grants --writer ROLE --relay ROLE --consumer ROLE --http ROLE --scheduler ROLE; or change it)", err)
}

// open connects to the broker, or to both of a migration, and asks whether they answer.
func (s *Service) open(ctx context.Context) (transport.Transport, error) {
	t, err := s.cfg.OpenTransport(ctx, s.pool, s.environment())
	if err != nil {
		return nil, err
	}
	return answering(ctx, t)
}

// environment is what the service gives a transport.
func (s *Service) environment() transport.Environment {
	return transport.Environment{
		DrainTimeout: s.cfg.ShutdownTimeout, Logger: s.log,
		MeterProvider: s.telemetry.Meter, TracerProvider: s.telemetry.Tracer, Propagator: s.telemetry.Propagator,
	}
}

// answering asks whether the transport's brokers answer, and closes it if not.
func answering(ctx context.Context, t transport.Transport) (transport.Transport, error) {
	if pinged, ok := t.(transport.Pinger); ok {
		if err := pinged.Ping(ctx); err != nil {
			return nil, unreachable(strings.ReplaceAll(t.Name(), "+", " or "), errors.Join(err, t.Close()))
		}
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
