package outboxadmin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

// Selection selects failed events. Zero fields select everything.
type Selection struct {
	EventIDs []string
	Key      string
	Topic    string
	Group    string // as in Event.Group
}

// Listing selects what List returns.
type Listing struct {
	States  []string // "retrying", "blocked", "dead", "discarded" and "delayed". Default: all of them
	Topic   string
	Key     string
	Group   string // as in Event.Group
	Limit   int    // Default: 100
	Payload bool   // return payloads too

	// Newest lists the newest failed events first, and searches the newest 2,000 of each state. Delayed ones are not among them.
	// Default: the oldest first.
	Newest bool
}

// Event is an event that List returns.
type Event struct {
	EventID  string     `json:"event_id"`
	Topic    string     `json:"topic"`
	Key      string     `json:"key,omitempty"`
	State    string     `json:"state"`
	Attempts int        `json:"attempts"`
	Created  time.Time  `json:"created"`
	Due      *time.Time `json:"due,omitempty"` // of a delayed event, or of the next attempt
	Reason   string     `json:"reason,omitempty"`
	Command  string     `json:"command,omitempty"` // until a relay has carried it out: an operator's "retry" or "discard", or a relay's "recover"
	Payload  []byte     `json:"payload,omitempty"`

	// Group is the same for events that failed alike: by the reason without numbers, IDs and quoted text.
	Group string `json:"group,omitempty"`
}

var allStates = []string{"dead", "retrying", "blocked", "discarded", "delayed"}

// complete sets defaults and validates.
func (l *Listing) complete() error {
	if len(l.States) == 0 {
		l.States = allStates
	}
	if l.Limit == 0 {
		l.Limit = 100
	}
	for _, s := range l.States {
		if !slices.Contains(allStates, s) {
			return fmt.Errorf("state is %q: want one of %v", s, allStates)
		}
	}
	return nil
}

// List returns failed, blocked and delayed events, the oldest first unless Newest is set.
func List(ctx context.Context, db pgtx.DB, schema string, l Listing) (found []Event, err error) {
	if err := l.complete(); err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	err = administer(ctx, db, schema, "list events", func(ctx context.Context, tx pgx.Tx, schema string) error {
		name, args := "list", []any{l.States, operator.Optional(l.Topic), operator.Optional(l.Key), l.Limit, l.Payload, operator.Optional(l.Group)}
		if l.Newest {
			name, args = "newest", append(args, sampleSize)
		}
		rows, err := tx.Query(ctx, query(name, schema), args...)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Event])
		return err
	})
	return found, err
}

// Retry asks a relay to retry events now: dead, retrying and discarded ones. It only flags them, and returns how many it
// flagged; a relay that runs does it at once.
func Retry(ctx context.Context, db pgtx.DB, schema string, s Selection, by By) (int64, error) {
	return command(ctx, db, schema, "retry", []string{"dead", "retrying", "discarded"}, s, by)
}

// Discard asks a relay to discard events: dead, retrying and blocked ones. They are kept until Purge deletes them, and the
// events behind them go on. It only flags them, and returns how many it flagged; a relay that runs does it at once. An event that
// a relay has fetched to send it may still be published; then it is not discarded.
func Discard(ctx context.Context, db pgtx.DB, schema string, s Selection, by By) (int64, error) {
	return command(ctx, db, schema, "discard", []string{"dead", "retrying", "blocked"}, s, by)
}

func command(ctx context.Context, db pgtx.DB, schema, name string, from []string, s Selection, by By) (n int64, err error) {
	if err := by.Validate(); err != nil {
		return 0, fmt.Errorf("%s events: %w", name, err)
	}
	err = administer(ctx, db, schema, name+" events", func(ctx context.Context, tx pgx.Tx, schema string) error {
		done, err := tx.Exec(ctx, query("command", schema), name, from, s.EventIDs, operator.Optional(s.Key), operator.Optional(s.Topic), operator.Optional(s.Group))
		if n = done.RowsAffected(); err != nil || n == 0 {
			return err
		}
		if _, err := audit(ctx, tx, schema, by, name, n, auditDetail{Topic: s.Topic, Key: s.Key, Group: s.Group, EventIDs: s.EventIDs}); err != nil {
			return err
		}
		return tellRelays(ctx, tx, schema)
	})
	return n, err
}

// tellRelays makes relays look for operators' commands after the commit. A notification takes a lock of the whole cluster while it
// commits, but this one is rare and short.
func tellRelays(ctx context.Context, tx pgx.Tx, schema string) error {
	_, err := tx.Exec(ctx, `select pg_notify($1, '')`, store.Channel(schema))
	return err
}

// Purge deletes discarded events that failed longer ago than that, and returns how many. It is for the owner of the tables.
func Purge(ctx context.Context, db pgtx.DB, schema string, olderThan time.Duration) (n int64, err error) {
	if olderThan < 0 {
		return 0, errors.New("purge discarded events: the age is negative")
	}
	for {
		var deleted int64
		err = administer(ctx, db, schema, "purge discarded events", func(ctx context.Context, tx pgx.Tx, schema string) error {
			done, err := tx.Exec(ctx, query("purge", schema), olderThan.Seconds())
			deleted = done.RowsAffected()
			return err
		})
		if err != nil || deleted == 0 {
			return n, err
		}
		n += deleted
	}
}
