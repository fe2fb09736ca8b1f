package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// Result is what became of the events that were selected.
type Result struct {
	Done     int `json:"done"`
	Behind   int `json:"behind,omitempty"`    // of those: they wait behind an earlier event of their key
	InFlight int `json:"in_flight,omitempty"` // left alone, because they are being handled, or were changed, at this moment

	// Others counts events that were selected by all but their states, and left alone.
	Others map[string]int `json:"others,omitempty"`
}

// Replay has events tried again at once and with all their attempts, in their former order: dead ones, unless States says
// otherwise ("dead", "waiting"). They are brought back by a service whose handler's subscriber is wrapped by
// Claim.Subscriber; where none runs they wait for one. That the records of their time may be gone does not matter: the
// operator vouches for them.
func Replay(ctx context.Context, db pgtx.DB, schema string, s Selection, by By) (Result, error) {
	return act(ctx, db, schema, selecting{Selection: s}, by, action{
		name: "replay", may: []string{"dead", "waiting"},
		do: func(ctx context.Context, tx pgx.Tx, schema string, on acting, r *Result) error {
			rows, err := tx.Query(ctx, query("replay", schema), on.ids)
			if err != nil {
				return err
			}
			behind, err := pgx.CollectRows(rows, pgx.RowTo[bool])
			for _, b := range behind {
				if b {
					r.Behind++
				}
			}
			return err
		},
	})
}

// Discard gives events up, for good: dead ones, unless States says otherwise ("dead", "waiting", "parked"). What the broker
// redelivers of them is absorbed, and later events of their keys go on.
func Discard(ctx context.Context, db pgtx.DB, schema string, s Selection, by By) (Result, error) {
	return act(ctx, db, schema, selecting{Selection: s}, by, discarding("discard"))
}

func discarding(name string) action {
	return action{
		name: name, may: []string{"dead", "waiting", "parked"},
		do: func(ctx context.Context, tx pgx.Tx, schema string, on acting, _ *Result) error {
			_, err := tx.Exec(ctx, query("discard", schema), on.ids)
			return err
		},
	}
}

// Purged is what Purge deleted.
type Purged struct {
	Events int `json:"events"`
	Audit  int `json:"audit"` // what operators did
}

// Purge discards dead letters that failed longer ago than that, and forgets what operators did longer ago. It is for the
// owner of the tables.
func Purge(ctx context.Context, db pgtx.DB, schema string, olderThan time.Duration, by By) (p Purged, err error) {
	if olderThan <= 0 {
		return p, fmt.Errorf("purge dead letters: the age is %v: want more than 0", olderThan)
	}
	if err := by.Validate(); err != nil {
		return p, fmt.Errorf("purge dead letters: %w", err)
	}
	seconds := olderThan.Seconds()
	// First, because it is what an operator who does not own the tables may not.
	err = administer(ctx, db, schema, "purge audit", func(ctx context.Context, tx pgx.Tx, schema string) error {
		return tx.QueryRow(ctx, query("forget", schema), seconds, by.Actor, by.Note).Scan(&p.Audit)
	})
	if err != nil {
		return p, err
	}
	r, err := act(ctx, db, schema, selecting{Selection: Selection{States: []string{"dead"}}, olderThan: &seconds}, by, discarding("purge"))
	p.Events = r.Done
	return p, err
}

// action is what operators do to events in some states; none named means the first.
type action struct {
	name string
	may  []string
	do   func(ctx context.Context, tx pgx.Tx, schema string, on acting, r *Result) error
}

// acting is events, and the keys that they hold up.
type acting struct {
	ids       []int64
	consumers []int16
	keys      []string
}

// act does it in one transaction. Keys are locked before events, as whoever parks and brings back does; events that somebody
// has in hand are not waited for, because that one may wait for a key of ours.
func act(ctx context.Context, db pgtx.DB, schema string, s selecting, by By, a action) (r Result, err error) {
	if err := by.Validate(); err != nil {
		return r, fmt.Errorf("%s failed events: %w", a.name, err)
	}
	states := s.States
	if len(states) == 0 {
		states = a.may[:1]
	}
	for _, state := range states {
		if !slices.Contains(a.may, state) {
			return r, fmt.Errorf("%s failed events: state is %q: want one of %v", a.name, state, a.may)
		}
	}
	s.States = nil
	err = administer(ctx, db, schema, a.name+" failed events", func(ctx context.Context, tx pgx.Tx, schema string) error {
		r = Result{}
		var on acting
		err := each(ctx, tx, schema, s, func(f selected) {
			if !slices.Contains(states, f.state) {
				if r.Others == nil {
					r.Others = map[string]int{}
				}
				r.Others[f.state]++
				return
			}
			on.ids, on.consumers, on.keys = append(on.ids, f.id), append(on.consumers, f.consumer), append(on.keys, f.key)
		})
		if err != nil || len(on.ids) == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, query("keys", schema), on.consumers, on.keys); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, query("lock", schema), on.ids, states)
		if err != nil {
			return err
		}
		locked, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		r.Done, r.InFlight = len(locked), len(on.ids)-len(locked)
		on.ids = locked
		if _, err := tx.Exec(ctx, query("audit", schema), on.ids, by.Actor, a.name, by.Note, json.RawMessage(`{}`)); err != nil {
			return err
		}
		if err := a.do(ctx, tx, schema, on, &r); err != nil {
			return err
		}
		for _, name := range []string{"promote", "free"} { // also where somebody was faster, and the keys are ours alone
			if _, err := tx.Exec(ctx, query(name, schema), on.consumers, on.keys); err != nil {
				return err
			}
		}
		return nil
	}, pgtx.Isolation(pgx.ReadCommitted)) // each statement sees what was committed before it got its locks
	return r, err
}
