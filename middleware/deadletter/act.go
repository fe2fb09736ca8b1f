package deadletter

import (
	"cmp"
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
	Known    int `json:"known,omitempty"`     // of those: Redirect discarded them, because the other consumer had them already
	InFlight int `json:"in_flight,omitempty"` // left alone, because they are being handled, or were changed, at this moment

	// Others counts events that were selected by all but their states, and left alone.
	Others map[string]int `json:"others,omitempty"`
}

// Discard gives events up, for good: dead ones, unless States says otherwise ("dead", "retrying", "blocked"). What the broker
// redelivers of them is absorbed, and later events of their keys go on. It commits after each 1,000 events: if it ends early,
// those that it has discarded stay discarded.
func Discard(ctx context.Context, db pgtx.DB, schema string, s Selection, by By) (Result, error) {
	return discarding("discard").all(ctx, db, schema, s, by)
}

func discarding(name string) action {
	return action{
		name: name, may: []string{"dead", "retrying", "blocked"},
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
	s := Selection{States: []string{"dead"}}
	// First, because it is what an operator who does not own the tables may not.
	err = administer(ctx, db, schema, "purge audit", func(ctx context.Context, tx pgx.Tx, schema string) error {
		if err := tx.QueryRow(ctx, query("newest", schema), olderThan.Seconds()).Scan(nil, &s.Until); err != nil {
			return err
		}
		return tx.QueryRow(ctx, query("forget", schema), olderThan.Seconds(), by.Actor, by.Note).Scan(&p.Audit)
	})
	if err != nil {
		return p, err
	}
	r, err := discarding("purge").all(ctx, db, schema, s, by)
	p.Events = r.Done
	return p, err
}

// action is what operators do to events in some states; none named means the first.
type action struct {
	name   string
	may    []string
	detail string // JSON for the audit
	except string // a consumer whose events are passed over
	// still returns those of the locked events that it is for; nil: all
	still func(ctx context.Context, tx pgx.Tx, schema string, locked []int64) ([]int64, error)
	do    func(ctx context.Context, tx pgx.Tx, schema string, on acting, r *Result) error
}

// acting is events, and the keys that they hold up.
type acting struct {
	ids       []int64
	consumers []int16
	keys      []string
}

// complete sets the states that the action is for.
func (a action) complete(s *Selection, by By) error {
	err := by.Validate()
	if len(s.States) == 0 {
		s.States = a.may[:1]
	}
	for _, state := range s.States {
		if err == nil && !slices.Contains(a.may, state) {
			err = fmt.Errorf("state is %q: want one of %v", state, a.may)
		}
	}
	if err == nil {
		err = s.validate()
	}
	if err != nil {
		return fmt.Errorf("%s failed events: %w", a.name, err)
	}
	return nil
}

// all does it to all events that are selected and have failed by now.
func (a action) all(ctx context.Context, db pgtx.DB, schema string, s Selection, by By) (r Result, err error) {
	if err := a.complete(&s, by); err != nil {
		return r, err
	}
	var upTo int64
	err = a.administer(ctx, db, schema, func(ctx context.Context, tx pgx.Tx, schema string) (err error) {
		upTo, r.Others, err = a.begin(ctx, tx, schema, s)
		return err
	})
	for above := int64(0); err == nil && above < upTo; {
		next, last := r, upTo
		err = a.administer(ctx, db, schema, func(ctx context.Context, tx pgx.Tx, schema string) (err error) {
			next = r
			last, err = a.step(ctx, tx, schema, s, above, upTo, pageSize, by, &next)
			return err
		})
		if err == nil {
			r, above = next, last
		}
	}
	return r, err
}

// administer runs a transaction of the action. Each statement sees what was committed before it got its locks.
func (a action) administer(ctx context.Context, db pgtx.DB, schema string, f func(context.Context, pgx.Tx, string) error) error {
	return administer(ctx, db, schema, a.name+" failed events", f, pgtx.Isolation(pgx.ReadCommitted))
}

// begin returns the last event that has failed by now, and how many of those that are selected are in other states.
func (a action) begin(ctx context.Context, tx pgx.Tx, schema string, s Selection) (upTo int64, others map[string]int, err error) {
	if err := tx.QueryRow(ctx, query("newest", schema), 0).Scan(&upTo, nil); err != nil {
		return 0, nil, err
	}
	states := s.States
	s.States = slices.DeleteFunc(slices.Clone(allStates), func(state string) bool { return slices.Contains(states, state) })
	others, err = s.count(ctx, tx, schema, upTo)
	if len(others) == 0 {
		others = nil
	}
	return upTo, others, err
}

// step does it to the next events, at most so many, and returns the last one.
func (a action) step(ctx context.Context, tx pgx.Tx, schema string, s Selection, above, upTo int64, limit int, by By, r *Result) (last int64, err error) {
	page, err := s.page(ctx, tx, schema, above, upTo, limit)
	if err != nil {
		return 0, err
	}
	if len(page) == 0 {
		_, err := tx.Exec(ctx, query("fold", schema))
		return upTo, err
	}
	_, err = a.act(ctx, tx, schema, page, s.States, by, r)
	return page[len(page)-1].id, err
}

// act does it to those of the events that are in one of the states, and returns their IDs. Keys are locked before events, as whoever
// blocks and brings back does; events that somebody has in flight are not waited for, because that one may wait for a key of ours.
func (a action) act(ctx context.Context, tx pgx.Tx, schema string, page []selected, states []string, by By, r *Result) (done []int64, err error) {
	var on acting
	for _, f := range page {
		if f.name == a.except {
			continue
		}
		on.ids, on.consumers, on.keys = append(on.ids, f.id), append(on.consumers, f.consumer), append(on.keys, f.key)
	}
	if _, err := tx.Exec(ctx, query("keys", schema), on.consumers, on.keys); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, query("lock", schema), on.ids, states)
	if err != nil {
		return nil, err
	}
	if on.ids, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		return nil, err
	}
	if a.still != nil {
		if on.ids, err = a.still(ctx, tx, schema, on.ids); err != nil {
			return nil, err
		}
	}
	r.Done, r.InFlight = r.Done+len(on.ids), r.InFlight+len(on.keys)-len(on.ids)
	if _, err := tx.Exec(ctx, query("audit", schema), on.ids, by.Actor, a.name, by.Note, json.RawMessage(cmp.Or(a.detail, `{}`))); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, query("supersede", schema), on.ids); err != nil {
		return nil, err
	}
	if err := a.do(ctx, tx, schema, on, r); err != nil {
		return nil, err
	}
	for _, name := range []string{"promote", "free"} { // also where somebody was faster, and the keys are ours alone
		if _, err := tx.Exec(ctx, query(name, schema), on.consumers, on.keys); err != nil {
			return nil, err
		}
	}
	return on.ids, nil
}
