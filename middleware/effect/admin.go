package effect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// Entry is an effect as shown to a person. Times are by the server's clock.
type Entry struct {
	Key            string          `json:"key"`
	State          string          `json:"state"` // "running", "pending", "doubt", "done", "not_done"
	IdempotencyKey string          `json:"idempotency_key"`
	Calls          int             `json:"calls"`
	FirstCalledAt  time.Time       `json:"first_called_at"`
	CalledAt       time.Time       `json:"called_at"` // the last call
	Until          time.Time       `json:"until"`     // running, pending: when it becomes in doubt; doubt: since when
	Response       json.RawMessage `json:"response,omitempty"`
	Reason         string          `json:"reason,omitempty"` // of the doubt, or why it is not done
	SettledBy      string          `json:"settled_by,omitempty"`
	SettledAt      *time.Time      `json:"settled_at,omitempty"`
	Conflicts      int             `json:"conflicts,omitempty"` // calls that succeeded after another one had begun
}

// Listing selects the effects that List returns.
type Listing struct {
	State string // "open" (in doubt or in conflict: a person must decide), "doubt", "conflict", "running", "pending", "done", "not_done" or "all". Default: "open"
	Limit int    // Default: 100. Of more effects that are not settled, those with the earliest Until are listed

	// Mentions selects effects whose keys contain this text, such as an event's ID. It reads the whole ledger. Default: all.
	Mentions string

	// Key selects the effect with this key. EventID selects the effects that a handler of this event called first. Default: all.
	Key, EventID string

	// Newest lists the last calls first, and searches only the last 10,000. Default: the oldest call first.
	Newest bool
}

// searched is how many effects Listing.Newest reads.
const searched = 10_000

// States are the values of Listing.State. "open" is "doubt" and "conflict".
var States = []string{"open", "doubt", "conflict", "running", "pending", "done", "not_done", "all"}

// List returns effects of the schema ("" means "millrace"), the oldest call first unless Newest is set. It uses its own
// transaction.
func List(ctx context.Context, db pgtx.DB, schema string, l Listing) (found []Entry, err error) {
	schema, err = pgschema.Validate(schema)
	if err != nil {
		return nil, fmt.Errorf("list effects: %w", err)
	}
	if l.State == "" {
		l.State = "open"
	}
	if !slices.Contains(States, l.State) {
		return nil, fmt.Errorf("list effects: Listing.State is %q: want one of %s", l.State, strings.Join(States, ", "))
	}
	if l.Limit == 0 {
		l.Limit = 100
	}
	name, args := "list", []any{l.State, l.Limit, l.Mentions, operator.Optional(l.Key), operator.Optional(l.EventID)}
	switch {
	case l.Newest:
		name, args = "newest", append(args, searched)
	case !slices.Contains([]string{"all", done, notDone}, l.State):
		name = "unsettled"
	}
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := migrations.Check(ctx, tx, schema); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, pgschema.Query(files, "plan", schema)); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, pgschema.Query(files, name, schema), args...)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Entry, err error) {
			var response []byte
			err = row.Scan(&e.Key, &e.State, &e.Calls, &e.FirstCalledAt, &e.CalledAt, &e.Until, &response, &e.Reason,
				&e.SettledBy, &e.SettledAt, &e.Conflicts)
			e.Response, e.IdempotencyKey = response, idempotencyKey(schema, e.Key)
			return e, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list effects: %w", err)
	}
	return found, nil
}

// Resolution is a person's decision about an effect in doubt, in conflict or pending.
type Resolution struct {
	Done     bool            // true: it happened; false: it did not, and may be called again
	Response json.RawMessage // what the call would have returned, for effects called by Value; only with Done
	By       string          // the person who decides
	Note     string          // why; optional
}

// Resolve settles an effect. Events that wait for it continue at their next delivery. An effect in doubt or pending takes any
// decision. An effect that is done without a response takes a response. An effect in conflict takes Done, which removes it from the
// list of open effects. Resolve commits its own transaction, with a row in the table effect_resolution.
func Resolve(ctx context.Context, db pgtx.DB, schema, key string, decision Resolution) error {
	schema, err := pgschema.Validate(schema)
	if err == nil {
		err = decision.validate()
	}
	if err != nil {
		return fmt.Errorf("resolve effect %q: %w", key, err)
	}
	s := newStore(db, schema, defaultRetention)
	var decided *record
	err = s.change(ctx, resolveTimeout, key, func(tx pgx.Tx, r *record, now time.Time) (*record, error) {
		if decided.committed(r) { // the answer to COMMIT was lost
			return nil, nil
		}
		next, err := r.resolve(decision, now)
		if err != nil {
			return nil, err
		}
		decided = next
		_, err = tx.Exec(ctx, pgschema.Query(files, "resolve", schema), key, next.State, r.State, r.Reason, decision.By, decision.Note)
		return next, err
	})
	if err != nil {
		return fmt.Errorf("resolve effect %q: %w", key, err)
	}
	return nil
}

// committed reports whether the ledger holds the decided record r; false if r is nil. A decision always changes the record.
func (r *record) committed(found *record) bool {
	return r != nil && found != nil && r.State == found.State && r.SettledBy == found.SettledBy && r.Conflicts == found.Conflicts &&
		found.SettledAt != nil && r.SettledAt.Equal(*found.SettledAt) && bytes.Equal(r.Response, found.Response)
}

// resolveTimeout bounds the retries to record a decision.
const resolveTimeout = 10 * time.Second

func (d Resolution) validate() error {
	var errs []error
	if d.By == "" {
		errs = append(errs, errors.New("Resolution.By is empty: want who decides"))
	}
	if d.By != storable(d.By) || d.Note != storable(d.Note) {
		errs = append(errs, fmt.Errorf("Resolution.By or Note is no text to store: want valid UTF-8 of at most %d bytes", maxReason))
	}
	if d.Response != nil && (!d.Done || !json.Valid(d.Response)) {
		errs = append(errs, fmt.Errorf("Resolution.Response is %s: want JSON, and only for an effect that is done", d.Response))
	}
	return errors.Join(errs...)
}

// resolve is one of the record's transitions: a person decides.
func (r *record) resolve(d Resolution, now time.Time) (*record, error) {
	if r == nil {
		return nil, errors.New(`no such effect: "millrace effect list" shows which there are`)
	}
	next := *r
	switch {
	case r.State == running && !r.inDoubt(now):
		return nil, fmt.Errorf("it may be running until %s: decide after that", r.Until.UTC().Format(time.RFC3339))
	case (r.inDoubt(now) || r.State == pending) && d.Done:
		next.settle(done, d.Response, d.By, now)
	case r.inDoubt(now), r.State == pending:
		next.settle(notDone, nil, d.By, now)
	case r.State == done && d.Done && (r.Conflicts > 0 || r.Response == nil && d.Response != nil):
		if r.Response == nil {
			next.Response = d.Response
		}
	default:
		return nil, fmt.Errorf("it is %s, by %s: nothing to decide", r.State, r.SettledBy)
	}
	next.Conflicts = 0
	return &next, nil
}
