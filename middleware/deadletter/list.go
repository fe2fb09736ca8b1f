package deadletter

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// Listing selects what List returns.
type Listing struct {
	Selection       // States: all
	Limit     int   // Default: 100
	After     int64 // only events behind the one with this Event.ID in the list. Default: all
}

// Event is an event whose handler failed. Times are the server's.
type Event struct {
	ID       int64  `json:"id"` // in the order in which they failed first
	EventID  string `json:"event_id"`
	Consumer string `json:"consumer"`
	Key      string `json:"key,omitempty"` // the ordering key, where order matters
	// State is "nacked": the broker redelivers it; "retrying": it is tried again at Due; "blocked": it waits behind an
	// earlier event of its key; "dead": an operator decides.
	State    string     `json:"state"`
	Attempts int        `json:"attempts"`
	Reason   string     `json:"reason"` // why it is here, in one word
	Error    string     `json:"error"`  // of the last attempt
	Handler  string     `json:"handler"`
	Topic    string     `json:"topic"`
	Replayed bool       `json:"replayed,omitempty"` // an operator had it tried again
	First    time.Time  `json:"first"`
	Failed   time.Time  `json:"failed"` // the last time
	Due      *time.Time `json:"due,omitempty"`
	Bytes    int        `json:"bytes"` // of the payload; 0 while the broker has it

	// Group is the same for events that failed alike: by the reason, and the error without numbers, IDs and quoted text.
	Group string `json:"group"`

	// The rest is Show's alone.
	History  []Attempt         `json:"history,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Payload  []byte            `json:"payload,omitempty"`
	// Origin is where the message lay at its broker, where the transport tells: on Kafka topic, partition, offset, timestamp.
	Origin transport.Origin `json:"origin,omitempty"`

	uuid string // of the message
}

// Attempt is one of the last attempts.
type Attempt struct {
	At    time.Time `json:"at"`
	By    string    `json:"by"` // host and process
	Error string    `json:"error"`
}

// List returns events that failed in the schema ("" means "millrace"), the longest there first.
func List(ctx context.Context, db pgtx.DB, schema string, l Listing) ([]Event, error) {
	return find(ctx, db, schema, "list failed events", l, false, l.oldest)
}

// ListNewest is List with the newest first. It reads a bounded number of events, as SampleGroups does, and so may find fewer than Limit
// although there are more: Listing.After = older goes on where it has ended. older is 0 where no event is left. The oldest of a Key are
// in all parts.
func ListNewest(ctx context.Context, db pgtx.DB, schema string, l Listing) (events []Event, older int64, err error) {
	events, err = find(ctx, db, schema, "list newest failed events", l, false, func(ctx context.Context, tx pgx.Tx, schema string) ([]selected, error) {
		part, err := l.newest(ctx, tx, schema, cmp.Or(l.After, math.MaxInt64), l.limit())
		older = part.older
		return part.events, err
	})
	slices.Reverse(events)
	return events, older, err
}

func (l Listing) limit() int { return cmp.Or(l.Limit, 100) }

func (l Listing) oldest(ctx context.Context, tx pgx.Tx, schema string) ([]selected, error) {
	return l.page(ctx, tx, schema, l.After, math.MaxInt64, l.limit())
}

// Show returns the event with payload, metadata and the last attempts, once for each consumer that it failed for; consumer
// may be "" for all of them. It is empty when there is none.
func Show(ctx context.Context, db pgtx.DB, schema, eventID, consumer string) ([]Event, error) {
	l := Listing{Selection: Selection{EventIDs: []string{eventID}, Consumer: consumer}, Limit: 1000}
	return find(ctx, db, schema, "show failed event", l, true, l.oldest)
}

// find returns what choose selects, the longest there first.
func find(ctx context.Context, db pgtx.DB, schema, action string, l Listing, detail bool, choose func(context.Context, pgx.Tx, string) ([]selected, error)) (found []Event, err error) {
	if err := l.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", action, err)
	}
	err = administer(ctx, db, schema, action, func(ctx context.Context, tx pgx.Tx, schema string) error {
		page, err := choose(ctx, tx, schema)
		if err != nil {
			return err
		}
		var ids []int64
		for _, f := range page {
			ids = append(ids, f.id)
		}
		rows, err := tx.Query(ctx, query("show", schema), ids, detail)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, scanFailed)
		return err
	}, pgtx.Isolation(pgx.RepeatableRead)) // one snapshot
	return found, err
}

func scanFailed(row pgx.CollectableRow) (f Event, err error) {
	var history, carried []byte
	err = row.Scan(&f.ID, &f.EventID, &f.Consumer, &f.Key, &f.State, &f.Attempts, &f.Reason, &f.Error, &f.Handler, &f.Topic, &f.Replayed,
		&f.First, &f.Failed, &f.Due, &f.Group, &f.Bytes, &history, &carried, &f.Payload)
	if err == nil && history != nil {
		err = json.Unmarshal(history, &f.History)
	}
	if err == nil && carried != nil {
		var h inbox.Headers
		h, err = inbox.DecodeHeaders(carried)
		f.Metadata, f.Origin, f.uuid = h.Metadata, h.Origin, h.UUID
	}
	return f, err
}
