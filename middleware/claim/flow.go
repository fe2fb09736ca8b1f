package claim

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

// Flow is how one consumer does.
type Flow struct {
	Consumer string

	// Minutes are those of the last hour in which processes with Claim.Run wrote what they had counted, which they do every 10 s, the
	// oldest first. Processes without it write nothing.
	Minutes []FlowMinute

	Oldest   map[string]time.Time // by state, nacked, retrying or blocked: when the event that failed first failed first
	Group    string               // what its unsettled events failed by last; "" where none failed
	Error    string               // what the errors of the group have in common
	LastAt   time.Time            // when the group's last event came to be what it is
	Full     int                  // how many of its keys are full: see Config.MaxBlocked
	FullKeys []string             // the first five
}

// FlowMinute is what all processes counted for a consumer and wrote within a minute.
type FlowMinute struct {
	At                                     time.Time // its beginning; the server's
	Handled, Duplicates, Contended, Failed int64
	Busy, Longest                          time.Duration // of the handled ones: the sum, and the longest
}

// Flows is how the consumers of a schema do.
type Flows struct {
	Now       time.Time // the server's
	Since     time.Time // what was counted before is not here: an hour ago, or later where more was counted than is read
	Partly    bool      // more keys are full than are read
	Consumers []Flow    // those of which there is something to tell, by name
}

const (
	// maxCounted is how many rows of the journal are read, and maxFull how many full keys.
	maxCounted = 20_000
	maxFull    = 10_000
)

// InspectFlows tells how the consumers of the schema ("" means "millrace") do. What it reads is bounded, however many events failed. It takes
// no locks.
func InspectFlows(ctx context.Context, db pgtx.DB, schema string) (all Flows, err error) {
	found := map[string]*Flow{}
	of := func(consumer string) *Flow {
		if found[consumer] == nil {
			found[consumer] = &Flow{Consumer: consumer, Oldest: map[string]time.Time{}}
		}
		return found[consumer]
	}
	err = operator.Run(ctx, db, Migrations, schema, "inspect consumers", func(ctx context.Context, tx pgx.Tx, schema string) error {
		if err := tx.QueryRow(ctx, `select now()`).Scan(&all.Now); err != nil {
			return err
		}
		var (
			name, state, group, text string
			m                        FlowMinute
			busy, longest            int64
			at                       time.Time
			n, read                  int
			keys                     []string
		)
		for _, q := range []struct {
			name  string
			args  []any
			scans []any
			add   func()
		}{
			{"flow_minutes", []any{maxCounted}, []any{&name, &m.At, &m.Handled, &m.Duplicates, &m.Contended, &m.Failed, &busy, &longest, &read}, func() {
				m.Busy, m.Longest = time.Duration(busy)*time.Millisecond, time.Duration(longest)*time.Millisecond
				of(name).Minutes = append(of(name).Minutes, m)
			}},
			{"flow_waiting", nil, []any{&name, &state, &at}, func() { of(name).Oldest[state] = at }},
			{"flow_errors", nil, []any{&name, &group, &at, &text}, func() {
				of(name).Group, of(name).LastAt, of(name).Error = group, at, text
			}},
			{"flow_full", []any{maxFull}, []any{&name, &n, &keys, &read}, func() {
				of(name).Full, of(name).FullKeys, all.Partly = n, keys, read == maxFull
			}},
		} {
			rows, err := tx.Query(ctx, store.Query(q.name, schema), q.args...)
			if err != nil {
				return err
			}
			if _, err = pgx.ForEachRow(rows, q.scans, func() error { q.add(); return nil }); err != nil {
				return err
			}
			if q.name == "flow_minutes" {
				all.Since = all.Now.Truncate(time.Minute).Add(-time.Hour)
				if read == maxCounted {
					all.Since = forget(found)
				}
			}
		}
		return nil
	})
	for _, f := range found {
		all.Consumers = append(all.Consumers, *f)
	}
	slices.SortFunc(all.Consumers, func(a, b Flow) int { return cmp.Compare(a.Consumer, b.Consumer) })
	return all, err
}

// forget drops the oldest minute, of which not all was read, and returns when it ended.
func forget(found map[string]*Flow) time.Time {
	var oldest time.Time
	for _, f := range found {
		if at := f.Minutes[0].At; oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
	}
	for _, f := range found {
		if f.Minutes[0].At.Equal(oldest) {
			f.Minutes = f.Minutes[1:]
		}
	}
	return oldest.Add(time.Minute)
}
