// Package store has the claim's tables in PostgreSQL and their statements: claims and their records, and failed events.
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

// Reasons why an event is not handled. Package claim exports them under the same names.
var (
	ErrContended = errors.New("another consumer holds the claim")
	ErrCompleted = errors.New("the event was processed before")
	ErrBlocked   = errors.New("an earlier event of the same key has failed")
	ErrTooOld    = errors.New("the event is older than the record of what was processed")
	ErrClock     = errors.New("the event's ID is from the future")
)

// Execer executes a statement. A connection and a pool implement it.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// KeepTimeout bounds a transaction that records a failure.
const KeepTimeout = 10 * time.Second

// keepAgain is how long Keep waits before it tries again.
const keepAgain = 250 * time.Millisecond

// Key names one effect: one event for one consumer.
type Key struct {
	Consumer, EventID string

	Order string // the ordering key, if the order of failed events is kept, otherwise ""
	Due   time.Time
}

// Record returns the event's ID in the tables.
func (k Key) Record() pgtype.UUID { return inbox.Record(k.EventID, k.Due) }

// Hash returns the ID in the tables of an event without a day.
func (k Key) Hash() pgtype.UUID { return inbox.Hash(k.EventID) }

// Lock returns the number of the claim's advisory lock.
func (k Key) Lock(schema string) int64 { return inbox.Lock(schema, k.Consumer, k.EventID) }

// Minted returns when the event was minted, or was due. It is unknown if the ID is not a UUIDv7.
func (k Key) Minted() (time.Time, bool) { return inbox.Time(k.Record()) }

// optionalRow scans a row that may be missing.
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
