// Package explain tells where an event is, and why: in the outbox, at the broker, at each consumer, and its effects. The command
// "millrace explain" and the console's page of an event are made of it.
package explain

import (
	"context"
	"embed"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/reach"
	"github.com/millrace-go/millrace/internal/tables"
)

//go:embed queries/*.sql
var files embed.FS

// Explanation is where an event is, and why. Times are the database's.
type Explanation struct {
	EventID string     `json:"event_id"`
	Minted  *time.Time `json:"minted,omitempty"` // where the ID tells
	Due     *time.Time `json:"due,omitempty"`    // of a delayed one
	Topic   string     `json:"topic,omitempty"`
	Key     string     `json:"key,omitempty"`
	Trace   string     `json:"trace,omitempty"`
	Cause   string     `json:"cause,omitempty"` // the event whose handler published it
	Now     time.Time  `json:"now"`
	Known   bool       `json:"known"` // something is known of it
	Stages  []Stage    `json:"stages"`
}

// Stage is what is known at one place of an event's way.
type Stage struct {
	Place string   `json:"place"`        // outbox, copy, broker, claim, effect, output; event where nothing is known
	Of    string   `json:"of,omitempty"` // the consumer, the effect's key, the copy's topic, the output's ID
	State string   `json:"state"`
	Why   string   `json:"why"`
	Next  []string `json:"next,omitempty"` // commands that an operator may want now
}

// asked is where an event is looked for.
type asked struct {
	pool   *pgxpool.Pool
	schema string
	due    time.Time // of a delayed event, where it is known
	reach  reach.Reach
	there  map[string]bool // components that have tables

	patience time.Duration // for how long a table without an index on event IDs is read; 0: no limit
}

// Explain tells what the schema knows of the event. Its ID may be abbreviated. Commands that it suggests reach the database as r
// says. The outbox has no index on event IDs, and with millions of rows it takes seconds to read: patience bounds that, and the
// explanation says what was not read. 0 is for no limit.
func Explain(ctx context.Context, pool *pgxpool.Pool, schema, eventID string, due time.Time, r reach.Reach, patience time.Duration) (Explanation, error) {
	x := asked{pool: pool, schema: schema, due: due, reach: r, patience: patience}
	var err error
	if x.there, err = tables.Installed(ctx, pool, schema); err != nil {
		return Explanation{}, err
	}
	if len(x.there) == 0 {
		return Explanation{}, fmt.Errorf("schema %q has no tables of Millrace: run \"millrace migrate up\", or name another schema by --schema", schema)
	}
	var places []Place
	if x.there["outbox"] {
		places = append(places, Outbox)
	}
	if x.there["claim"] {
		places = append(places, Consumers, Completed)
	}
	id, err := WholeID(ctx, pool, schema, eventID, places...)
	if err != nil {
		return Explanation{}, err
	}
	found, err := x.identify(ctx, id)
	if err != nil {
		return Explanation{}, err
	}
	return found.explain(), nil
}

// minted is the time in a UUIDv7.
func minted(eventID string) *time.Time {
	id, err := uuid.Parse(eventID)
	if err != nil || id.Version() != 7 {
		return nil
	}
	seconds, nanos := id.Time().UnixTime()
	at := time.Unix(seconds, nanos)
	return &at
}
