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

// Flow describes the throughput and the failures of one consumer.
type Flow struct {
	Consumer string

	// Minutes are the last hour's minutes in which processes with Claim.Run have written their counts, the oldest first. Such a process
	// writes every 10 s. Processes without Claim.Run write nothing.
	Minutes []FlowMinute

	Oldest   map[string]time.Time // state (nacked, retrying or blocked) -> first failure of the event that failed first
	Group    string               // error group of the latest failure among its unsettled events; "" if none failed
	Error    string               // the part that the errors of the group have in common
	LastAt   time.Time            // when the latest event of the group changed its state
	Full     int                  // number of keys that are full: see Config.MaxBlocked
	FullKeys []string             // the five keys that have been full for longest
}

// FlowMinute is the sum of what all processes counted for a consumer and wrote within a minute.
type FlowMinute struct {
	At                                     time.Time // beginning of the minute, by the server's clock
	Handled, Duplicates, Contended, Failed int64
	Busy, Longest                          time.Duration // time in the handlers of handled events: the sum, and the longest
}

// Flows describes the consumers of a schema.
type Flows struct {
	Now       time.Time // by the server's clock
	Since     time.Time // counts begin here: an hour ago, or later if there are more rows than are read
	Partly    bool      // there are more full keys than are read
	Consumers []Flow    // consumers that have something to report, by name
}

const (
	// maxCounted is how many rows of the journal are read; maxFull is how many full keys are read.
	maxCounted = 20_000
	maxFull    = 10_000
)

// InspectFlows returns the throughput and the failures of the consumers in the schema ("" means "millrace"). It reads a bounded
// number of rows, however many events failed. It takes no locks.
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

// forget drops the oldest minute, because not all of its rows were read, and returns the end of that minute.
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
