package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// dropTimeout bounds the removal of a schema, which also happens after Ctrl-C.
const dropTimeout = 30 * time.Second

// withSchema calls fn with a pool of pgx's default size whose connections are all open, and the name of a schema that fn
// may create. It drops the schema afterwards, whatever happened.
func withSchema(ctx context.Context, dsn string, fn func(pool *pgxpool.Pool, schema string) error) (err error) {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := openAll(ctx, pool); err != nil {
		return err
	}
	schema := "bench_" + strings.ToLower(rand.Text()[:12])
	defer func() { err = errors.Join(err, dropSchema(ctx, pool, schema)) }()
	return fn(pool, schema)
}

// dropSchema also works when ctx has ended.
func dropSchema(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	if _, err := pool.Exec(ctx, `drop schema if exists `+schema+` cascade`); err != nil {
		return fmt.Errorf("drop schema %s: %w", schema, err)
	}
	return nil
}

// openPool returns a pool of that many open connections, over a network of that round trip; 0: the one that is there.
func openPool(ctx context.Context, dsn string, conns int32, roundTrip time.Duration, options ...func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = conns
	if roundTrip > 0 {
		cfg.ConnConfig.DialFunc = delayedDial(roundTrip)
	}
	for _, option := range options {
		option(cfg)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := openAll(ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// openAll opens the pool's connections, so that no clock measures the server's authentication.
func openAll(ctx context.Context, pool *pgxpool.Pool) error {
	var taken []*pgxpool.Conn
	defer func() {
		for _, conn := range taken {
			conn.Release()
		}
	}()
	for range pool.Config().MaxConns {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		taken = append(taken, conn)
	}
	return nil
}

// settle brings a table that was just filled to the state of one that has been there for a while: its statistics and
// visibility are known and its pages are written, so that neither autovacuum nor a checkpoint of the load falls into
// the measurement. Every contestant gets the same.
func settle(ctx context.Context, pool *pgxpool.Pool, table string) error {
	if _, err := pool.Exec(ctx, `vacuum analyze `+table); err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	return checkpoint(ctx, pool)
}

func checkpoint(ctx context.Context, pool *pgxpool.Pool) error {
	var pgErr *pgconn.PgError
	_, err := pool.Exec(ctx, `checkpoint`)
	if errors.As(err, &pgErr) && pgErr.Code == "42501" { // only a superuser may; then nobody gets one
		return nil
	}
	return err
}

// serverFacts tells which PostgreSQL this is and what of its settings the figures depend on.
func serverFacts(ctx context.Context, dsn, source string) ([]string, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // the statement's error counts
	var version, settings string
	err = conn.QueryRow(ctx, `select current_setting('server_version'),
		(select string_agg(name || '=' || current_setting(name), ' ' order by name) from pg_settings
		where name in ('fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size', 'wal_level'))`).
		Scan(&version, &settings)
	if err != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("PostgreSQL %s (%s), %s", version, source, settings)}, nil
}
