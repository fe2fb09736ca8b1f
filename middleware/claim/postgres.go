package claim

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// Migrate creates the tables of the PostgreSQL store in the schema ("" means "millrace"), or brings them up to date. The
// outbox, to which handlers' events are written, has a Migrate of its own. Migrate may run at any time, in several
// processes at once.
func Migrate(ctx context.Context, db pgtx.DB, schema string) error {
	m, err := Migrations(db, schema)
	if err != nil {
		return err
	}
	return m.Up(ctx)
}

// Migrations returns the migrator of the store's tables in the schema ("" means "millrace"). It migrates up and down, reports
// which migrations were applied, and prints their statements.
func Migrations(db pgtx.DB, schema string) (*pgschema.Migrator, error) {
	return store.Migrations.In(db, schema)
}

// outputs is the part that PostgresStore and SQLStore share.
type outputs struct {
	schema    string
	publisher *outbox.Publisher
	err       error // error in the options; New returns it
}

// PostgresOption changes a PostgresStore or an SQLStore.
type PostgresOption func(*outputs)

// Schema sets the schema of the store's tables and of the outbox to which handlers' events are written. Default: "millrace".
func Schema(name string) PostgresOption {
	return func(o *outputs) { o.schema, o.err = pgschema.Validate(name) }
}

func newOutputs(opts []PostgresOption) outputs {
	o := outputs{schema: pgschema.Default}
	for _, set := range opts {
		set(&o)
	}
	if o.err == nil {
		o.publisher, o.err = outbox.NewPublisher(outbox.PublisherConfig{Schema: o.schema})
	}
	return o
}

func (o *outputs) validate() error { return o.err }

// Stage publishes to the outbox, in the transaction that ctx carries.
func (o *outputs) Stage(_ context.Context, topic string, msgs ...*message.Message) error {
	return o.publisher.Publish(topic, msgs...)
}

// PostgresStore keeps claims in PostgreSQL: an advisory lock while the handler runs, and a record that is inserted in the
// transaction of the handler's writes. It is safe for concurrent use. Each running claim holds one connection of the
// pool.
type PostgresStore struct {
	outputs
	db *store.Postgres
}

// NewPostgresStore returns a store in the pool's database. The caller closes the pool.
func NewPostgresStore(pool *pgxpool.Pool, opts ...PostgresOption) *PostgresStore {
	s := &PostgresStore{outputs: newOutputs(opts)}
	s.db = store.NewPostgres(pool, s.schema)
	if pool == nil {
		s.err = errors.Join(s.err, errors.New("pool is nil: want the *pgxpool.Pool of the service's database"))
	}
	return s
}

// Do runs fn in a transaction that also claims the event; fn's context carries it. The transaction commits to disk
// before Do returns nil, whatever the role's synchronous_commit is.
//
// An error that wraps pgtx.ErrOutcomeUnknown means that the connection was lost during COMMIT. Have the event delivered
// again: its record shows whether the commit succeeded.
func (s *PostgresStore) Do(ctx context.Context, key Key, fn func(ctx context.Context) error) error {
	if s.err != nil {
		return s.err
	}
	return s.db.Do(ctx, store.Key(key), fn)
}

// SQLStore is like PostgresStore, for services whose code uses database/sql. The handler gets its *sql.Tx from
// pgtx.SQLFrom(msg.Context()), and messages that it returns are written to the outbox in that transaction. Both stores use the
// same tables, so their consumers exclude one another. It is safe for concurrent use. Each running claim holds one connection.
//
// SQLStore lacks what needs pgx. It does not count attempts and keeps no failed events, so the Claim returns errors to the
// router. Claim.Run, Claim.Subscriber and Config.Ordered need a PostgresStore. BEGIN, COMMIT and each staged message are a
// round trip each. Use "millrace retention run" to make and drop the days of its tables.
type SQLStore struct {
	outputs
	db *store.SQL
}

// NewSQLStore returns a store in the database of db. Its driver is pgx's stdlib or another PostgreSQL driver with
// placeholders like $1. The caller closes db.
func NewSQLStore(db *sql.DB, opts ...PostgresOption) *SQLStore {
	s := &SQLStore{outputs: newOutputs(opts)}
	s.db = store.NewSQL(db, s.schema)
	if db == nil {
		s.err = errors.Join(s.err, errors.New("db is nil: want the *sql.DB of the service's database"))
	}
	return s
}

// Do runs fn in a transaction that also claims the event; fn's context carries it. See PostgresStore.Do. fn must not end
// the transaction.
func (s *SQLStore) Do(ctx context.Context, key Key, fn func(ctx context.Context) error) error {
	if s.err != nil {
		return s.err
	}
	return s.db.Do(ctx, store.Key(key), fn)
}

// postgresOf returns of, or the store that it wraps, as a PostgreSQL store; nil if it is none.
func postgresOf(of Store) *store.Postgres {
	for of != nil {
		if s, ok := of.(*PostgresStore); ok {
			return s.db
		}
		outer, ok := of.(interface{ Unwrap() Store })
		if !ok {
			return nil
		}
		of = outer.Unwrap()
	}
	return nil
}

// withoutPostgres returns an error for each setting that needs PostgreSQL.
func (c Config) withoutPostgres() error {
	var errs []error
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"Ordered", c.Ordered},
		{"MaxAttempts", c.MaxAttempts != 0},
		{"Backoff", c.Backoff != nil},
		{"MaxBlocked", c.MaxBlocked != 0},
		{"DeadLetterTopic", c.DeadLetterTopic != ""},
		{"Retry, or that of a handler,", c.hasPolicies()},
	} {
		if f.set {
			errs = append(errs, fmt.Errorf("Config.%s is set: want a store with PostgreSQL behind it, which alone keeps events that failed", f.name))
		}
	}
	return errors.Join(errs...)
}
