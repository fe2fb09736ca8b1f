// Package database connects a service to PostgreSQL, and checks or migrates its tables.
package database

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/internal/budget"
	"github.com/millrace-go/millrace/internal/pgdsn"
	"github.com/millrace-go/millrace/internal/tables"
)

// Connect connects to the database with a pool of the given number of connections, 0 for the default. If dsn is empty and
// connecting fails, the error ends with hint.
func Connect(ctx context.Context, dsn string, connections int32, hint string) (*pgxpool.Pool, error) {
	parsed, err := pgdsn.Parse(dsn)
	if err != nil {
		return nil, fmt.Errorf("Config.Postgres.DSN is %w", err)
	}
	parsed.MaxConns = Connections(parsed, dsn, connections)
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
		if dsn == "" {
			err = fmt.Errorf("%w\nNo DSN is set. %s\nA service on Kafka with delivery: transactional can do without: set postgres.disabled.", err, hint)
		}
		return nil, err
	}
	return pool, nil
}

// adviceOn suggests a fix for a failed connection besides changing the DSN.
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

// Connections returns the maximum size of the pool. most is Config.Postgres.MaxConnections.
func Connections(parsed *pgxpool.Config, dsn string, most int32) int32 {
	switch {
	case most > 0:
		return most
	case strings.Contains(dsn, "pool_max_conns"):
		return parsed.MaxConns
	}
	return budget.Default
}

// Migrate creates and changes Millrace's tables.
func Migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
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

// Check returns an error if tables are missing or of a wrong version.
func Check(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	all, err := tables.Migrators(pool, schema)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range all {
		err := m.Check(ctx)
		if denied(err) {
			return WithGrants(err) // the other components fail for the same reason
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w\n(or set Config.Postgres.Migrate (postgres.migrate), and the service does it by itself)", err)
	}
	return nil
}

// denied reports whether the role lacks a privilege.
func denied(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "42501" // insufficient_privilege
}

// WithGrants adds the fix to an error of a role that lacks a privilege. It returns other errors as they are.
func WithGrants(err error) error {
	if !denied(err) {
		return err
	}
	return fmt.Errorf("%w\n(grant the role of Config.Postgres.DSN (postgres.dsn) what a service needs: "+
		"millrace migrate grants --writer ROLE --relay ROLE --consumer ROLE --http ROLE --scheduler ROLE; or change it)", err)
}

// None returns a pool that never gets a connection: each attempt to acquire one returns why.
func None(why error) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig("host=none user=none dbname=none sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("make a pool without connections: %w", err) // a PG… variable is wrong
	}
	cfg.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { return why }
	return pgxpool.NewWithConfig(context.Background(), cfg)
}

// Close closes the pool. It waits at most the timeout for connections that are in use.
func Close(pool *pgxpool.Pool, timeout time.Duration) error {
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
