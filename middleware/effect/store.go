package effect

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

//go:embed migrations/*.sql queries/*.sql
var files embed.FS

var migrations = pgschema.Line{Component: "effect", Files: files, Command: "effect.Migrate"}

// Migrate creates the ledger's tables in the schema ("" means "millrace"), or updates them. It may run at any time, in several
// processes at once.
func Migrate(ctx context.Context, db pgtx.DB, schema string) error {
	m, err := Migrations(db, schema)
	if err != nil {
		return err
	}
	return m.Up(ctx)
}

// Migrations returns a migrator of the ledger's tables in the schema ("" means "millrace"). It migrates up and down, lists the
// applied migrations, and prints the statements.
func Migrations(db pgtx.DB, schema string) (*pgschema.Migrator, error) {
	return migrations.In(db, schema)
}

// store reads and writes records. Each runs in its own transaction on db, never in a transaction of the context.
type store struct {
	db        pgtx.DB
	schema    string
	retention time.Duration // of most days

	lock, find, insert, update, days string
}

func newStore(db pgtx.DB, schema string, retention time.Duration) store {
	query := func(name string) string { return pgschema.Query(files, name, schema) }
	return store{db, schema, retention, query("lock"), query("find"), query("insert"), query("update"), query("days")}
}

// errMoved means that the row has moved since it was read.
var errMoved = errors.New("the record has moved to another day")

// change calls f under the effect's lock, with the effect's record (or nil) and the server's time. It writes the record that f
// returns, unless that is nil. The commit is durable. After a temporary error change calls f again, until patience has passed. The
// failed attempt may have committed.
func (s store) change(ctx context.Context, patience time.Duration, key string, f func(tx pgx.Tx, r *record, now time.Time) (*record, error)) error {
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last error
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := pgx.BeginTxFunc(ctx, s.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			r, now, err := s.look(ctx, tx, key)
			if err != nil {
				return err
			}
			next, err := f(tx, r, now)
			if err != nil {
				return &refusedError{err}
			}
			if next == nil {
				return nil
			}
			return s.write(ctx, tx, key, r, next)
		})
		var refused *refusedError
		switch {
		case errors.As(err, &refused):
			return refused.error
		case noPartition(err):
			if derr := s.makeDays(ctx); derr != nil {
				return errors.Join(err, derr)
			}
		case !passing(err):
			return s.hint(err)
		}
		if ctx.Err() == nil || last == nil { // otherwise keep the earlier error: a timeout says less
			last = err
		}
		select {
		case <-outer.Done():
			return errors.Join(context.Cause(outer), last)
		case <-ctx.Done():
			if state := sqlState(last); state != "" && !strings.HasPrefix(state, "53") {
				return &outageError{fmt.Errorf("the database refused it for %v: %w", patience, last)}
			}
			return &outageError{fmt.Errorf("no answer of the database within %v, of which the ledger needs a connection beside the service's pool: %w", patience, last)}
		case <-time.After(pause):
		}
	}
}

// makeDays creates the missing days.
func (s store) makeDays(ctx context.Context) error {
	return s.hint(pgx.BeginTxFunc(ctx, s.db, pgx.TxOptions{}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.days)
		return err
	}))
}

// look locks the effect and returns its record, or nil. Most records are of today.
func (s store) look(ctx context.Context, tx pgx.Tx, key string) (found *record, now time.Time, err error) {
	var batch pgx.Batch
	batch.Queue(s.lock, lockKey(s.schema, key)).QueryRow(func(row pgx.Row) error {
		return row.Scan(nil, nil, nil, &now)
	})
	today := dayOf(time.Now()) // by this clock, because the statement needs it before the server has answered
	s.queueFind(&batch, key, day(today), day(today.AddDate(0, 0, 1)), &found)
	if err = tx.SendBatch(ctx, &batch).Close(); err == nil && found == nil {
		found, err = s.lookEverywhere(ctx, tx, key, now)
	}
	return found, now, err
}

// fewDays is how many days one statement searches. Each costs two relation locks, and up to PostgreSQL 17 only the first 16 of a
// transaction are cheap.
const fewDays = 4

// lookEverywhere searches all days, a few at a time, and gives their locks back. It begins with the oldest, because Retain may move
// the record to a later day meanwhile, never to an earlier one.
func (s store) lookEverywhere(ctx context.Context, tx pgx.Tx, key string, now time.Time) (found *record, err error) {
	var batch pgx.Batch
	batch.Queue("savepoint millrace_effect")
	from, last := "-infinity", dayOf(now).AddDate(0, 0, fewDays)
	days := int(s.retention/(24*time.Hour)) + fewDays
	for to := last.AddDate(0, 0, -days/fewDays*fewDays); !to.After(last); to = to.AddDate(0, 0, fewDays) {
		s.queueFind(&batch, key, from, day(to), &found)
		batch.Queue("rollback to savepoint millrace_effect")
		from = day(to)
	}
	s.queueFind(&batch, key, from, "infinity", &found)
	batch.Queue("rollback to savepoint millrace_effect")
	batch.Queue("release savepoint millrace_effect")
	return found, tx.SendBatch(ctx, &batch).Close()
}

// queueFind queues the search in the days from and up to, but without, to.
func (s store) queueFind(batch *pgx.Batch, key, from, to string, found **record) {
	batch.Queue(within(s.find, from, to), key).QueryRow(func(row pgx.Row) error {
		var r record
		err := row.Scan(&r.CreatedAt, &r.State, &r.Token, &r.Calls, &r.FirstCalledAt, &r.CalledAt, &r.Until, &r.Response,
			&r.Reason, &r.SettledBy, &r.SettledAt, &r.Conflicts, &r.EventID)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		*found = &r
		return err
	})
}

func within(query, from, to string) string {
	return strings.NewReplacer("'-infinity'", "'"+from+"'", "'infinity'", "'"+to+"'").Replace(query)
}

func dayOf(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

// day returns the day's beginning for a statement.
func day(t time.Time) string { return t.Format(time.DateOnly) + "Z" }

func (s store) write(ctx context.Context, tx pgx.Tx, key string, was, r *record) error {
	args := []any{
		key, r.CreatedAt, r.State, r.Token, r.Calls, r.FirstCalledAt, r.CalledAt, r.Until, r.Response,
		r.Reason, r.SettledBy, r.SettledAt, r.Conflicts,
	}
	if was == nil {
		_, err := tx.Exec(ctx, s.insert, append(args, r.EventID)...)
		return err
	}
	its := dayOf(was.CreatedAt)
	tag, err := tx.Exec(ctx, within(s.update, day(its), day(its.AddDate(0, 0, 1))), append(args, was.CreatedAt)...)
	if err == nil && tag.RowsAffected() == 0 {
		return errMoved
	}
	return err
}

func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// noPartition reports whether the server's current day has no partition yet.
func noPartition(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "23514" && pgErr.ConstraintName == ""
}

// passing reports whether a retry may succeed: the server is away or full, or another transaction changed the row. A mistake of the
// ledger itself, such as a missing table, does not pass.
func passing(err error) bool {
	if err == nil {
		return false
	}
	state := sqlState(err)
	return state == "" || !slices.Contains([]string{"22", "23", "28", "3F", "42"}, state[:2])
}

// outageError is the error of a change that could not be made in time.
type outageError struct{ error }

func (e *outageError) Unwrap() error { return e.error }

// refusedError is an error of f. change does not retry it.
type refusedError struct{ error }

// hint adds the remedy to an error of PostgreSQL that only names what is missing.
func (s store) hint(err error) error {
	switch sqlState(err) {
	case "42P01", "3F000":
		return fmt.Errorf("the ledger's tables are missing in schema %q: run effect.Migrate first, or \"millrace migrate up\": %w", s.schema, err)
	case "42501":
		return fmt.Errorf("the role lacks privileges in schema %q: run \"millrace migrate grants --consumer ROLE\": %w", s.schema, err)
	}
	return err
}

// lockKey is the first 8 bytes of SHA-256 of the schema and the key. It must be the same in every process.
func lockKey(schema, key string) int64 {
	h := sha256.Sum256([]byte(schema + "\x00effect\x00" + key))
	return int64(binary.BigEndian.Uint64(h[:8]))
}

// idempotencyKey is a UUID (version 8: custom) from the SHA-256 of schema, service and key. It must be the same in every process
// and in every version, because providers store it.
func idempotencyKey(schema, key string) string {
	h := sha256.Sum256([]byte(schema + "\x00idempotency key\x00" + key))
	u := uuid.UUID(h[:16])
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return u.String()
}
