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

// Result counts the selected events by what an action did with them.
type Result struct {
	Done     int `json:"done"`
	Behind   int `json:"behind,omitempty"`    // of Done: events that wait behind an earlier event of their key
	Known    int `json:"known,omitempty"`     // of Done: events that Redirect only discarded, because the other consumer had them already
	InFlight int `json:"in_flight,omitempty"` // events left unchanged, because they are being handled, or have changed since the action began

	// Others counts, by state, the events that fit the selection but for their state. They are left unchanged.
	Others map[string]int `json:"others,omitempty"`
}

// Discard gives up events permanently: dead ones, unless States says otherwise ("dead", "retrying", "blocked"). Redeliveries of
// these events count as duplicates, and later events of their keys continue. Discard commits after each 1,000 events. If it ends
// early, the events discarded so far stay discarded.
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

// Purged is the result of Purge.
type Purged struct {
	Events int `json:"events"`
	Audit  int `json:"audit"` // rows of the audit
}

// Purge discards dead letters that failed longer than olderThan ago, and deletes older rows of the audit. Only the owner of the
// tables may call it.
func Purge(ctx context.Context, db pgtx.DB, schema string, olderThan time.Duration, by By) (p Purged, err error) {
	if olderThan <= 0 {
		return p, fmt.Errorf("purge dead letters: the age is %v: want more than 0", olderThan)
	}
	if err := by.Validate(); err != nil {
		return p, fmt.Errorf("purge dead letters: %w", err)
	}
	s := Selection{States: []string{"dead"}}
	// The audit first: this fails if the operator does not own the tables.
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

// action is an operators' action on events in the states of may. The default is the first of these states.
type action struct {
	name   string
	may    []string
	detail string // JSON for the audit
	except string // events of this consumer are left out
	page   int    // how many events one transaction changes; 0: pageSize
	// still returns the locked events that the action still applies to; nil: all of them.
	still func(ctx context.Context, tx pgx.Tx, schema string, locked []int64) ([]int64, error)
	do    func(ctx context.Context, tx pgx.Tx, schema string, on acting, r *Result) error
}

// acting is the events of one step, and the keys that they block.
type acting struct {
	ids       []int64
	consumers []int16
	keys      []string
}

// complete checks the selection and the operator, and sets the default state.
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

// all applies the action to the events that are selected now. It leaves events that fit the selection later: a retried event may become
// dead meanwhile, and a blocked one is retried when the event before it is discarded.
func (a action) all(ctx context.Context, db pgtx.DB, schema string, s Selection, by By) (r Result, err error) {
	if err := a.complete(&s, by); err != nil {
		return r, err
	}
	var ids []int64
	err = administer(ctx, db, schema, a.name+" failed events", func(ctx context.Context, tx pgx.Tx, schema string) (err error) {
		ids, r.Others, err = s.ids(ctx, tx, schema)
		return err
	}, pgtx.Isolation(pgx.RepeatableRead))
	if slices.Contains(s.States, "blocked") && !slices.Contains(s.States, "retrying") {
		s.States = append(slices.Clone(s.States), "retrying") // a blocked event may come to its turn when the event before it goes
	}
	for err == nil && len(ids) > 0 {
		n, next := min(len(ids), cmp.Or(a.page, pageSize)), r
		err = a.administer(ctx, db, schema, func(ctx context.Context, tx pgx.Tx, schema string) error {
			next = r
			page, err := s.page(ctx, tx, schema, ids[0]-1, ids[n-1], ids[:n], n)
			next.InFlight += n - len(page) // they have changed since
			if err == nil && len(page) > 0 {
				_, err = a.act(ctx, tx, schema, page, s.States, by, &next)
			}
			if err == nil && n == len(ids) {
				_, err = tx.Exec(ctx, query("fold", schema))
			}
			return err
		})
		if err == nil {
			r, ids = next, ids[n:]
		}
	}
	return r, err
}

// administer runs a transaction of the action, at READ COMMITTED: each statement sees what was committed before it got its locks.
func (a action) administer(ctx context.Context, db pgtx.DB, schema string, f func(context.Context, pgx.Tx, string) error) error {
	return administer(ctx, db, schema, a.name+" failed events", f, pgtx.Isolation(pgx.ReadCommitted))
}

// step applies the action to the next events, at most limit, and returns the ID of the last one.
func (a action) step(ctx context.Context, tx pgx.Tx, schema string, s Selection, above, upTo int64, limit int, by By, r *Result) (last int64, err error) {
	page, err := s.page(ctx, tx, schema, above, upTo, nil, limit)
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

// act applies the action to the events that are in one of the states, and returns their IDs. It locks keys before events. It does not
// wait for events in flight, because their transactions may wait for a key that this one has locked.
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
	for _, name := range []string{"promote", "free"} { // also for events that another transaction has changed, as only their keys are locked here
		if _, err := tx.Exec(ctx, query(name, schema), on.consumers, on.keys); err != nil {
			return nil, err
		}
	}
	return on.ids, nil
}
