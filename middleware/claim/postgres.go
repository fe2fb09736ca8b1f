package claim

import (
	"context"
	"embed"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

//go:embed migrations/*.sql queries/*.sql
var files embed.FS

var migrations = pgschema.Line{Component: "claim", Files: files, Command: "claim.Migrate"}

const (
	// idleSlack is how much longer than the handler's deadline the server waits before it ends an idle transaction.
	idleSlack = 5 * time.Second
	// maxIdle is how long it waits where there is no deadline.
	maxIdle = 10 * time.Minute
)

// Migrate creates the tables of the PostgreSQL store in the schema ("" means "millrace"), or brings them up to date. The
// outbox, which follow-up events are staged in, has a Migrate of its own. It may run at any time, in several processes at
// once.
func Migrate(ctx context.Context, db pgtx.DB, schema string) error {
	m, err := Migrations(db, schema)
	if err != nil {
		return err
	}
	return m.Up(ctx)
}

// Migrations returns what migrates the store's tables in the schema ("" means "millrace") up and down, tells what was
// applied, and prints the statements.
func Migrations(db pgtx.DB, schema string) (*pgschema.Migrator, error) {
	return migrations.In(db, schema)
}

// PostgresOption changes a PostgresStore or an SQLStore.
type PostgresOption func(*claims)

// Schema sets the schema of the store's tables and of the outbox that follow-up events go to. Default: "millrace".
func Schema(name string) PostgresOption {
	return func(c *claims) { c.schema, c.err = pgschema.Validate(name) }
}

// PostgresStore keeps claims in PostgreSQL: an advisory lock while the handler runs, and a record that is inserted in the
// transaction of the handler's writes. It is safe for concurrent use. Each running claim holds one connection of the
// pool.
type PostgresStore struct {
	claims
	pool *pgxpool.Pool

	failed   failedStatements
	isolated atomic.Bool // the role's default isolation level is not the claims': each lazy claim needs its BEGIN
	// When rows of events that succeeded elsewhere were looked for, in Unix nanoseconds, and of which time they were, in microseconds.
	swept, sweptTo atomic.Int64
}

// NewPostgresStore returns a store in the pool's database. The pool stays the caller's.
func NewPostgresStore(pool *pgxpool.Pool, opts ...PostgresOption) *PostgresStore {
	s := &PostgresStore{pool: pool}
	s.begin = s.transaction
	s.ask = func(ctx context.Context, query string, args []any, dest ...any) error {
		return pool.QueryRow(ctx, query, args...).Scan(dest...)
	}
	s.prepare(opts)
	if pool == nil {
		s.err = errors.Join(s.err, errors.New("pool is nil: want the *pgxpool.Pool of the service's database"))
	}
	s.failed = newFailedStatements(func(name string) string { return pgschema.Query(files, name, s.schema) })
	return s
}

// Do runs fn in a transaction that also claims the event; fn's context carries it. The transaction commits to disk
// before Do returns nil, whatever the role's synchronous_commit is.
//
// An error that wraps pgtx.ErrOutcomeUnknown means that the connection was lost during COMMIT: have the event delivered
// again, its record tells.
func (s *PostgresStore) Do(ctx context.Context, key Key, fn func(ctx context.Context) error) error {
	return s.place(ctx, key, fn)
}

func (s *PostgresStore) transaction(ctx context.Context, fn func(ctx context.Context, ask asker) error) error {
	return pgtx.Run(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		return fn(ctx, func(ctx context.Context, query string, args []any, dest ...any) error {
			return tx.QueryRow(ctx, query, args...).Scan(dest...)
		})
	}, pgtx.Isolation(pgx.ReadCommitted))
}
