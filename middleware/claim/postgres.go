package claim

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox"
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

// PostgresOption changes a PostgresStore.
type PostgresOption func(*PostgresStore)

// Schema sets the schema of the store's tables and of the outbox that follow-up events go to. Default: "millrace".
func Schema(name string) PostgresOption {
	return func(s *PostgresStore) { s.schema, s.err = pgschema.Validate(name) }
}

// PostgresStore keeps claims in PostgreSQL: an advisory lock while the handler runs, and a record that is inserted in the
// transaction of the handler's writes. It is safe for concurrent use. Each running claim holds one connection of the
// pool.
type PostgresStore struct {
	pool   *pgxpool.Pool
	schema string
	err    error // of the options; New reports it

	outputs   *outbox.Publisher
	sql       statements
	consumers sync.Map // name → int16
	healing   sync.Mutex

	failed failedStatements
	swept  atomic.Int64 // when rows of events that succeeded elsewhere were looked for, in Unix nanoseconds
}

// statements are those of a schema.
type statements struct{ claim, done, found, future, findName, addName, lockConsumers, floor, prune string }

func statementsIn(schema string) statements {
	query := func(name string) string { return pgschema.Query(files, name, schema) }
	return statements{
		claim: query("claim"), done: query("claim_done"), found: query("claim_found"), future: query("claim_future"),
		findName: query("consumer_find"), addName: query("consumer_add"),
		lockConsumers: query("consumer_lock"), floor: query("consumer_floor"), prune: query("claim_prune"),
	}
}

// NewPostgresStore returns a store in the pool's database. The pool stays the caller's.
func NewPostgresStore(pool *pgxpool.Pool, opts ...PostgresOption) *PostgresStore {
	s := &PostgresStore{pool: pool, schema: pgschema.Default}
	for _, o := range opts {
		o(s)
	}
	if pool == nil {
		s.err = errors.Join(s.err, errors.New("pool is nil: want the *pgxpool.Pool of the service's database"))
	}
	if s.err == nil {
		s.outputs, s.err = outbox.NewPublisher(outbox.PublisherConfig{Schema: s.schema})
	}
	s.sql = statementsIn(s.schema)
	s.failed = newFailedStatements(func(name string) string { return pgschema.Query(files, name, s.schema) })
	return s
}

func (s *PostgresStore) validate() error { return s.err }

// Do runs fn in a transaction that also claims the event; fn's context carries it. The transaction commits to disk
// before Do returns nil, whatever the role's synchronous_commit is.
//
// An error that wraps pgtx.ErrOutcomeUnknown means that the connection was lost during COMMIT: have the event delivered
// again, its record tells.
func (s *PostgresStore) Do(ctx context.Context, key Key, fn func(ctx context.Context) error) error {
	if s.err != nil {
		return s.err
	}
	if _, ok := pgtx.From(ctx); ok {
		return errors.New("the context carries a transaction already: a claim begins its own; is the middleware there twice?")
	}
	return s.place(ctx, key, fn)
}

// errStaleConsumer means that the consumer's number, as this process remembers it, is not in the database.
var errStaleConsumer = errors.New("the consumer's number has changed")

// do claims the event and calls fn. With a doubt its record is the hash, and fn is called only where nobody has settled
// the event and the context vouches for it; the doubt is the error otherwise.
func (s *PostgresStore) do(ctx context.Context, key Key, doubt error, fn func(ctx context.Context) error) error {
	consumer, err := s.consumer(ctx, key.Consumer)
	if err != nil {
		return err
	}
	return pgtx.Run(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		var a answer
		err := tx.QueryRow(ctx, s.sql.claim, claimArgs(ctx, s.schema, key, consumer, doubt != nil)...).Scan(a.fields()...)
		if err != nil {
			return missingDay(s.hint(err))
		}
		if err := a.verdict(); err != nil {
			return err
		}
		if doubt != nil {
			var found bool
			if err := tx.QueryRow(ctx, s.sql.found, recordID(key), consumer).Scan(&found); err != nil {
				return fmt.Errorf("look for the record: %w", err)
			}
			switch {
			case found:
				return ErrCompleted
			case !proven(ctx):
				return doubt
			}
		}
		if err := fn(ctx); err != nil || a.state == nil {
			return err
		}
		return pgtx.Queue(ctx, s.sql.done, consumer, recordID(key))
	}, pgtx.Isolation(pgx.ReadCommitted))
}

// Stage publishes to the outbox, in the transaction that ctx carries.
func (s *PostgresStore) Stage(_ context.Context, topic string, msgs ...*message.Message) error {
	return s.outputs.Publish(topic, msgs...)
}

func (s *PostgresStore) consumer(ctx context.Context, name string) (int16, error) {
	if id, ok := s.consumers.Load(name); ok {
		return id.(int16), nil
	}
	var id int16
	err := s.pool.QueryRow(ctx, s.sql.findName, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = s.pool.QueryRow(ctx, s.sql.addName, name).Scan(&id)
	}
	if err != nil {
		return 0, fmt.Errorf("look up consumer %q: %w", name, s.hint(err))
	}
	s.consumers.Store(name, id)
	return id, nil
}

// hint says what to do where PostgreSQL only says that a relation does not exist.
func (s *PostgresStore) hint(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "42P01" || pgErr.Code == "3F000") {
		return fmt.Errorf("the claim's tables are missing in schema %q: run claim.Migrate first, or \"millrace migrate up\": %w", s.schema, err)
	}
	return err
}

// lockKey is the first 8 bytes of SHA-256 over event ID, consumer and schema: 64 bits, because 32 collide among a few
// thousand claims; the schema, because advisory locks belong to the whole database and another service's consumer may
// have the same name. It must be the same in every process, whatever it is written in.
func lockKey(schema string, k Key) int64 {
	h := sha256.Sum256([]byte(k.EventID + "\x00" + k.Consumer + "\x00" + schema))
	return int64(binary.BigEndian.Uint64(h[:8]))
}
