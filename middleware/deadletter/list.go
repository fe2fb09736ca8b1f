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
	Selection       // default of States: all
	Limit     int   // Default: 100
	After     int64 // only events that follow the one with this Event.ID in the list. Default: all
}

// Event is an event whose handler failed. Times are by the server's clock.
type Event struct {
	ID       int64  `json:"id"` // in the order of the events' first failures
	EventID  string `json:"event_id"`
	Consumer string `json:"consumer"`
	Key      string `json:"key,omitempty"` // the ordering key, if the consumer keeps order
	// State is "nacked" (the broker redelivers it), "retrying" (it is tried again at Due), "blocked" (it waits behind an
	// earlier event of its key) or "dead" (an operator decides).
	State    string     `json:"state"`
	Attempts int        `json:"attempts"`
	Reason   string     `json:"reason"` // one word, such as "attempts"
	Error    string     `json:"error"`  // the error of the last attempt
	Handler  string     `json:"handler"`
	Topic    string     `json:"topic"`
	Replayed bool       `json:"replayed,omitempty"` // an operator has replayed it
	First    time.Time  `json:"first"`
	Failed   time.Time  `json:"failed"` // the latest failure
	Due      *time.Time `json:"due,omitempty"`
	Bytes    int        `json:"bytes"` // size of the payload; 0 while only the broker has it

	// Group is equal for events that failed alike: with the same reason, and the same error but for numbers, IDs and quoted text.
	Group string `json:"group"`

	// The following fields are set by Show only.
	History  []Attempt         `json:"history,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Payload  []byte            `json:"payload,omitempty"`
	// Origin is the message's place at its broker, if the transport reports it: on Kafka topic, partition, offset and timestamp.
	Origin transport.Origin `json:"origin,omitempty"`

	uuid string // the message's UUID
}

// Attempt is one of the latest failed attempts.
type Attempt struct {
	At    time.Time `json:"at"`
	By    string    `json:"by"` // host and process
	Error string    `json:"error"`
}

// List returns failed events of the schema ("" means "millrace"), the one that failed first at the beginning.
func List(ctx context.Context, db pgtx.DB, schema string, l Listing) ([]Event, error) {
	return find(ctx, db, schema, "list failed events", l, false, l.oldest)
}

// ListNewest is like List, with the newest first. Like SampleGroups it reads a bounded number of events, so it may find fewer than Limit
// although there are more. To continue, call it with Listing.After = older; older is 0 if no event is left. If Key is set, each part
// also has the oldest events of the key.
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
	return l.page(ctx, tx, schema, l.After, math.MaxInt64, nil, l.limit())
}

// Show returns the event with payload, metadata and latest attempts, once for each consumer that it failed for. consumer
// may be "" for all consumers. The result is empty if there is no such event.
func Show(ctx context.Context, db pgtx.DB, schema, eventID, consumer string) ([]Event, error) {
	l := Listing{Selection: Selection{EventIDs: []string{eventID}, Consumer: consumer}, Limit: 1000}
	return find(ctx, db, schema, "show failed event", l, true, l.oldest)
}

// find returns the events that choose selects, the one that failed first at the beginning.
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
