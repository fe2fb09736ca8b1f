// Package explain reports where an event is, and why: in the outbox, at the broker, at each consumer, and its effects. The command
// "millrace explain" and the console's page of an event use it.
package explain

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/reach"
	"github.com/millrace-go/millrace/internal/tables"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

//go:embed queries/*.sql
var files embed.FS

// Explanation says where an event is, and why. Times are the database's.
type Explanation struct {
	EventID string     `json:"event_id"`
	Minted  *time.Time `json:"minted,omitempty"` // the time in the ID, if it has one
	Due     *time.Time `json:"due,omitempty"`    // of a delayed event
	Topic   string     `json:"topic,omitempty"`
	Key     string     `json:"key,omitempty"`
	Trace   string     `json:"trace,omitempty"`
	Cause   string     `json:"cause,omitempty"`  // the event whose handler published this one
	Relay   string     `json:"relay,omitempty"`  // that sent it, if it is archived
	Origin  string     `json:"origin,omitempty"` // its place at the broker, such as "partition 3, offset 17", if a consumer has kept it
	Now     time.Time  `json:"now"`
	Known   bool       `json:"known"` // something is known about it
	Stages  []Stage    `json:"stages"`
}

// Stage is what is known about an event at one place.
type Stage struct {
	Place string `json:"place"`        // outbox, copy, broker, claim, effect, output; event if nothing is known
	Of    string `json:"of,omitempty"` // the consumer, the effect's key, the copy's topic, the output's ID
	State string `json:"state"`
	Why   string `json:"why"`

	// At is when the event came to this place, and End when it left it. Nil: not recorded. An event that has At and no End may still be here.
	At       *time.Time           `json:"at,omitempty"`
	End      *time.Time           `json:"end,omitempty"`
	Attempts []deadletter.Attempt `json:"attempts,omitempty"` // of a consumer: the latest ones that failed

	Next []string `json:"next,omitempty"` // commands that an operator may want to run now
}

// asked is where to look for an event.
type asked struct {
	pool   *pgxpool.Pool
	schema string
	due    time.Time // of a delayed event, if it is known
	reach  reach.Reach
	there  map[string]bool // components that have tables

	patience time.Duration // how long to read a table without an index on event IDs; 0: no limit
}

// Explain returns what the schema knows about the event. Its ID may be abbreviated. The suggested commands reach the database through r.
// The outbox has no index on event IDs, so with millions of rows reading it takes seconds. patience bounds that, and the explanation says
// what was not read; 0 means no limit. For an abbreviated ID the error is then ErrNotSearched.
func Explain(ctx context.Context, pool *pgxpool.Pool, schema, eventID string, due time.Time, r reach.Reach, patience time.Duration) (Explanation, error) {
	id, err := Search(ctx, pool, schema, eventID, patience)
	if err != nil {
		return Explanation{}, err
	}
	return Exactly(ctx, pool, schema, id, due, r, patience)
}

// Exactly is Explain for a whole ID, also one that looks like an abbreviation.
func Exactly(ctx context.Context, pool *pgxpool.Pool, schema, id string, due time.Time, r reach.Reach, patience time.Duration) (Explanation, error) {
	x := asked{pool: pool, schema: schema, due: due, reach: r, patience: patience}
	var err error
	if x.there, err = installed(ctx, pool, schema); err != nil {
		return Explanation{}, err
	}
	found, err := x.identify(ctx, id)
	if err != nil {
		return Explanation{}, err
	}
	return found.explain(), nil
}

// ErrNoTables means that no component is installed in the schema.
var ErrNoTables = errors.New("no tables of Millrace")

// installed returns the components that have tables in the schema.
func installed(ctx context.Context, pool *pgxpool.Pool, schema string) (map[string]bool, error) {
	there, err := tables.Installed(ctx, pool, schema)
	if err == nil && len(there) == 0 {
		err = fmt.Errorf("schema %q has %w: run \"millrace migrate up\", or name another schema by --schema", schema, ErrNoTables)
	}
	return there, err
}

// minted returns the time in a UUIDv7.
func minted(eventID string) *time.Time {
	id, err := uuid.Parse(eventID)
	if err != nil || id.Version() != 7 {
		return nil
	}
	seconds, nanos := id.Time().UnixTime()
	at := time.Unix(seconds, nanos)
	return &at
}
