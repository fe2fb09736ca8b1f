// Package store has the claim's tables in PostgreSQL and their statements: the claims and their records, and the events that failed.
package store

import (
	"context"
	"embed"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

// Files holds the migrations and the statements.
//
//go:embed migrations/*.sql queries/*.sql
var Files embed.FS

// Migrations is the claim's line of migrations.
var Migrations = pgschema.Line{Component: "claim", Files: Files, Command: "claim.Migrate"}

// Query returns the statement of queries/name.sql for the schema.
func Query(name, schema string) string { return pgschema.Query(Files, name, schema) }

// Why an event is not handled. The claim's users know them by the same names.
var (
	ErrContended = errors.New("another consumer holds the claim")
	ErrCompleted = errors.New("the event was processed before")
	ErrBlocked   = errors.New("an earlier event of the same key has failed")
	ErrTooOld    = errors.New("the event is older than the record of what was processed")
	ErrClock     = errors.New("the event's ID is from the future")
)

// Execer executes a statement: a connection, or a pool.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// KeepTimeout bounds a transaction that records a failure.
const KeepTimeout = 10 * time.Second

// Key names one effect: an event as one consumer sees it.
type Key struct {
	Consumer, EventID string

	Order string // the ordering key, if that of events that fail is kept
	Due   time.Time
}

// Record is what the tables call the event.
func (k Key) Record() pgtype.UUID { return inbox.Record(k.EventID, k.Due) }

// Hash is what they call it where it has no day.
func (k Key) Hash() pgtype.UUID { return inbox.Hash(k.EventID) }

// Lock is the number of the advisory lock that a claim holds.
func (k Key) Lock(schema string) int64 { return inbox.Lock(schema, k.Consumer, k.EventID) }

// Minted is when the event was minted, or due. It is unknown where the ID is no UUIDv7.
func (k Key) Minted() (time.Time, bool) { return inbox.Time(k.Record()) }

// optionalRow scans a row that need not be there.
func optionalRow(dest ...any) func(row pgx.Row) error {
	return func(row pgx.Row) error {
		if err := row.Scan(dest...); !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return nil
	}
}

func queueIf(ctx context.Context, yes bool, sql string, args ...any) error {
	if !yes {
		return nil
	}
	return pgtx.Queue(ctx, sql, args...)
}
