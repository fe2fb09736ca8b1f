package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/pgtx"
)

// Postgres stores claims and failed events with pgx. It is safe for concurrent use.
type Postgres struct {
	Claims
	Pool *pgxpool.Pool

	failed   failedStatements
	isolated atomic.Bool // the role's default isolation level is not read committed, so each lazy claim needs its BEGIN
	// The last sweep for rows of events that succeeded elsewhere, in Unix nanoseconds, and how far it came, in Unix microseconds.
	swept, sweptTo atomic.Int64
}

// NewPostgres returns a store in the schema of the pool's database.
func NewPostgres(pool *pgxpool.Pool, schema string) *Postgres {
	s := &Postgres{Pool: pool}
	s.Schema, s.sql = schema, statementsIn(schema)
	s.begin = s.transaction
	s.ask = func(ctx context.Context, query string, args []any, dest ...any) error {
		return pool.QueryRow(ctx, query, args...).Scan(dest...)
	}
	s.failed = newFailedStatements(func(name string) string { return Query(name, schema) })
	return s
}

func (s *Postgres) transaction(ctx context.Context, fn func(ctx context.Context, ask asker) error) error {
	return pgtx.Run(ctx, s.Pool, func(ctx context.Context, tx pgx.Tx) error {
		return fn(ctx, func(ctx context.Context, query string, args []any, dest ...any) error {
			return tx.QueryRow(ctx, query, args...).Scan(dest...)
		})
	}, pgtx.Isolation(pgx.ReadCommitted))
}

// SQL stores claims with database/sql. It is safe for concurrent use.
type SQL struct {
	Claims
	db *sql.DB
}

// NewSQL returns a store in the schema of db's database.
func NewSQL(db *sql.DB, schema string) *SQL {
	s := &SQL{db: db}
	s.Schema, s.sql = schema, statementsIn(schema)
	s.begin = s.transaction
	s.ask = func(ctx context.Context, query string, args []any, dest ...any) error {
		return db.QueryRowContext(ctx, query, args...).Scan(dest...)
	}
	return s
}

func (s *SQL) transaction(ctx context.Context, fn func(ctx context.Context, ask asker) error) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // also after a panic; no effect after the commit
	err = fn(pgtx.WithSQL(ctx, tx), func(ctx context.Context, query string, args []any, dest ...any) error {
		for i := range dest {
			if dest[i] == nil { // pgx skips nil
				dest[i] = new(any)
			}
		}
		return tx.QueryRowContext(ctx, query, args...).Scan(dest...)
	})
	if err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return sqlCommitError(err)
	}
	return nil
}

// sqlCommitError distinguishes a commit that failed from one with an unknown outcome.
func sqlCommitError(err error) error {
	state := sqlState(err)
	lost := state == "" || strings.HasPrefix(state, "57") || strings.HasPrefix(state, "08") // the server or the connection went away
	if lost && !errors.Is(err, sql.ErrTxDone) && !errors.Is(err, pgx.ErrTxCommitRollback) {
		return fmt.Errorf("commit: %w: %w", pgtx.ErrOutcomeUnknown, err)
	}
	return fmt.Errorf("commit: %w", err)
}
