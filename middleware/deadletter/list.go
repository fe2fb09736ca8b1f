package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// States of events that failed.
var allStates = []string{"failing", "waiting", "parked", "dead"}

// Selection names events that failed. Zero fields select everything.
type Selection struct {
	EventIDs []string
	Consumer string
	Key      string
	Group    string   // as in Event.Group
	States   []string // "failing", "waiting", "parked", "dead". Default: see each function
}

// Listing selects what List returns.
type Listing struct {
	Selection     // States: all
	Limit     int // Default: 100
}

// Event is an event whose handler failed. Times are the server's.
type Event struct {
	EventID  string `json:"event_id"`
	Consumer string `json:"consumer"`
	Key      string `json:"key,omitempty"` // the ordering key, where order matters
	// State is "failing": the broker redelivers it; "waiting": it is tried again at Due; "parked": it waits behind an
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

// ErrorGroup is events that failed alike.
type ErrorGroup struct {
	Group     string    `json:"group"`
	Text      string    `json:"text"` // what they have in common
	Events    int       `json:"events"`
	Consumers []string  `json:"consumers"`
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`
}

// List returns events that failed in the schema ("" means "millrace"), the longest there first.
func List(ctx context.Context, db pgtx.DB, schema string, l Listing) ([]Event, error) {
	if l.Limit == 0 {
		l.Limit = 100
	}
	return find(ctx, db, schema, "list failed events", l, false)
}

// Show returns the event with payload, metadata and the last attempts, once for each consumer that it failed for; consumer
// may be "" for all of them. It is empty when there is none.
func Show(ctx context.Context, db pgtx.DB, schema, eventID, consumer string) ([]Event, error) {
	return find(ctx, db, schema, "show failed event", Listing{Selection: Selection{EventIDs: []string{eventID}, Consumer: consumer}, Limit: 1000}, true)
}

// ListGroups returns what failed alike, the most frequent first. It reads all events that are selected: dead ones, unless
// States says otherwise.
func ListGroups(ctx context.Context, db pgtx.DB, schema string, s Selection) (groups []ErrorGroup, err error) {
	if len(s.States) == 0 {
		s.States = []string{"dead"}
	}
	err = administer(ctx, db, schema, "list error groups", func(ctx context.Context, tx pgx.Tx, schema string) error {
		at := map[string]int{}
		return each(ctx, tx, schema, selecting{Selection: s}, func(f selected) {
			i, known := at[f.group]
			if !known {
				i = len(groups)
				at[f.group] = i
				groups = append(groups, ErrorGroup{Group: f.group, Text: f.text, First: f.first, Last: f.failed})
			}
			g := &groups[i]
			g.Events++
			if !slices.Contains(g.Consumers, f.name) {
				g.Consumers = append(g.Consumers, f.name)
			}
			if f.first.Before(g.First) {
				g.First = f.first
			}
			if f.failed.After(g.Last) {
				g.Last = f.failed
			}
		})
	})
	slices.SortStableFunc(groups, func(a, b ErrorGroup) int { return b.Events - a.Events })
	return groups, err
}

func find(ctx context.Context, db pgtx.DB, schema, action string, l Listing, detail bool) (found []Event, err error) {
	err = administer(ctx, db, schema, action, func(ctx context.Context, tx pgx.Tx, schema string) error {
		var ids []int64
		var groups []string
		err := each(ctx, tx, schema, selecting{Selection: l.Selection, limit: &l.Limit}, func(f selected) {
			ids, groups = append(ids, f.id), append(groups, f.group)
		})
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, query("show", schema), ids, detail)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, scanFailed)
		for i := range found { // in the order of ids
			found[i].Group = groups[i]
		}
		return err
	}, pgtx.Isolation(pgx.RepeatableRead)) // one snapshot
	return found, err
}

func scanFailed(row pgx.CollectableRow) (f Event, err error) {
	var history, carried []byte
	err = row.Scan(&f.EventID, &f.Consumer, &f.Key, &f.State, &f.Attempts, &f.Reason, &f.Error, &f.Handler, &f.Topic, &f.Replayed,
		&f.First, &f.Failed, &f.Due, &f.Bytes, &history, &carried, &f.Payload)
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

// selecting is a Selection as admin_select takes it.
type selecting struct {
	Selection
	olderThan *float64 // seconds since it failed
	limit     *int
}

// selected is a row of admin_select.
type selected struct {
	id          int64
	event       string
	consumer    int16
	name, key   string
	state       string
	group, text string
	first       time.Time
	failed      time.Time
}

// each calls f for all events that are selected, by the order in which they failed first.
func each(ctx context.Context, tx pgx.Tx, schema string, s selecting, f func(selected)) error {
	for _, state := range s.States {
		if !slices.Contains(allStates, state) {
			return fmt.Errorf("state is %q: want one of %v", state, allStates)
		}
	}
	var spelled []string
	for _, id := range s.EventIDs {
		spelled = append(spelled, inbox.Canonical(id))
	}
	states := s.States
	if len(states) == 0 {
		states = nil // all
	}
	rows, err := tx.Query(ctx, query("select", schema), spelled, operator.Optional(s.Consumer), operator.Optional(s.Key),
		operator.Optional(s.Group), states, s.olderThan, s.limit)
	if err != nil {
		return err
	}
	var one selected
	_, err = pgx.ForEachRow(rows, []any{
		&one.id, &one.event, &one.consumer, &one.name, &one.key, &one.state, &one.group, &one.text, &one.first, &one.failed,
	}, func() error { f(one); return nil })
	return err
}
