package outboxadmin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

// countLimit bounds what is counted of a shard or a table: a report must not become a burden when there is a backlog.
const countLimit = 2_000

// Count is a number of events. Beyond some thousands they are not counted to the end.
type Count struct {
	N       int64 `json:"n"`
	AtLeast bool  `json:"at_least,omitempty"` // there are N or more; with N = 0 nothing is known
}

// Known reports whether anything is known: a lower bound of 0 says nothing, and is shown as "–".
func (c Count) Known() bool { return c.N > 0 || !c.AtLeast }

func (c Count) String() string {
	if c.AtLeast {
		return fmt.Sprintf("≥%d", c.N)
	}
	return fmt.Sprint(c.N)
}

// Report is the state of an outbox at one moment. Times are the server's, and so is At: compare them with it.
type Report struct {
	At      time.Time        `json:"at"`
	Pending Count            `json:"pending"` // unpublished, those that failed apart
	Oldest  *time.Time       `json:"oldest"`  // when the oldest pending event was written
	Failed  map[string]Count `json:"failed"`  // by state: "retrying", "blocked", "dead", "discarded"
	Delayed Count            `json:"delayed"`
	NextDue *time.Time       `json:"next_due"`
	Shards  []ShardReport    `json:"shards"`
	Topics  []TopicReport    `json:"topics"` // among the rows that were counted, and those whose events wait for something
	Relays  []RelayReport    `json:"relays"`
	Landing *LandingReport   `json:"landing,omitempty"` // nil if there is neither a slot nor a marker
}

// ShardReport is one shard of a Report.
type ShardReport struct {
	Shard            int        `json:"shard"`
	Pending          Count      `json:"pending"`
	Oldest           *time.Time `json:"oldest"`
	OldestMoving     *time.Time `json:"oldest_moving"`   // without the events that a paused or failing topic holds up
	Relay            string     `json:"relay,omitempty"` // the name, or the ID, of the holder of the lease
	Expires          *time.Time `json:"lease_expires"`
	Held             bool       `json:"held"`                        // the lease has not expired
	UncleanTakeovers int        `json:"unclean_takeovers,omitempty"` // since events were last deleted
	Suspect          string     `json:"suspect,omitempty"`           // the event that may have killed a relay
	Attempts         int        `json:"attempts,omitempty"`          // how often a relay died while it sent the suspect
}

// RelayReport is one relay of a Report.
type RelayReport struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Expires time.Time `json:"expires"`
	Alive   bool      `json:"alive"`
	Shards  int       `json:"shards"`
}

// LandingReport is the state of the events that publishers with outbox.Log put into the write-ahead log.
type LandingReport = store.LandingReport

// InspectLanding reports the state of the events in the WAL. It returns nil if there is neither a slot nor a marker.
func InspectLanding(ctx context.Context, db pgtx.DB, schema string) (l *LandingReport, err error) {
	err = administer(ctx, db, schema, "inspect the landing of events", func(ctx context.Context, tx pgx.Tx, schema string) error {
		l, err = store.ReadLanding(ctx, tx, schema)
		return err
	})
	return l, err
}

// Inspect reports the state of the outbox. It takes no locks, reads a bounded number of rows, and needs no privilege but
// SELECT.
func Inspect(ctx context.Context, db pgtx.DB, schema string) (*Report, error) {
	var r *Report
	err := administer(ctx, db, schema, "inspect outbox", func(ctx context.Context, tx pgx.Tx, schema string) (err error) {
		r, err = inspect(ctx, tx, schema)
		return err
	}, pgtx.Isolation(pgx.RepeatableRead)) // one snapshot
	return r, err
}

func inspect(ctx context.Context, tx pgx.Tx, schema string) (*Report, error) {
	const limit = int64(countLimit)
	r := &Report{Failed: map[string]Count{}, Shards: []ShardReport{}, Topics: []TopicReport{}, Relays: []RelayReport{}}
	if err := tx.QueryRow(ctx, query("delayed", schema), limit).Scan(&r.Delayed.N, &r.NextDue, &r.At); err != nil {
		return nil, err
	}
	r.Delayed.AtLeast = r.Delayed.N == limit
	var err error
	if r.Landing, err = store.ReadLanding(ctx, tx, schema); err != nil {
		return nil, err
	}
	states, err := topicStates(ctx, tx, schema)
	if err != nil {
		return nil, err
	}

	each := func(name string, args, scans []any, f func()) error {
		rows, err := tx.Query(ctx, query(name, schema), args...)
		if err == nil {
			_, err = pgx.ForEachRow(rows, scans, func() error { f(); return nil })
		}
		return err
	}
	var (
		s     ShardReport
		id    string
		t     TopicReport
		relay RelayReport
		w     waiting
		state string
		n     int64
	)
	shards, topics := map[int]*ShardReport{}, map[string]*TopicReport{}
	topic := func(name string) *TopicReport {
		if topics[name] == nil {
			topics[name] = &TopicReport{Topic: name}
		}
		return topics[name]
	}
	err = errors.Join(
		each("waiting", []any{limit, heldUp(states)}, []any{&w.shard, &w.topic, &w.n, &w.oldest, &w.moving}, func() {
			if shards[w.shard] == nil {
				shards[w.shard] = &ShardReport{}
			}
			of, about := shards[w.shard], topic(w.topic)
			of.Pending.N += w.n
			about.Pending.N += w.n
			of.Oldest, of.OldestMoving, about.Oldest = earlier(of.Oldest, w.oldest), earlier(of.OldestMoving, w.moving), earlier(about.Oldest, w.oldest)
		}),
		each("shards", nil, []any{&s.Shard, &s.Relay, &id, &s.Expires, &s.Held, &s.UncleanTakeovers, &s.Suspect, &s.Attempts}, func() {
			if s.Relay == "" {
				s.Relay = id
			}
			s.Pending, s.Oldest, s.OldestMoving = Count{}, nil, nil
			if held := shards[s.Shard]; held != nil {
				s.Pending, s.Oldest, s.OldestMoving = held.Pending, held.Oldest, held.OldestMoving
			}
			r.add(&s, limit)
			r.Shards = append(r.Shards, s)
		}),
		each("topics", []any{limit}, []any{&t.Topic, &t.Failed.N}, func() { topic(t.Topic).Failed = t.Failed }),
		each("failed", []any{limit}, []any{&state, &n}, func() { r.Failed[state] = Count{N: n, AtLeast: n == limit} }),
		each("relays", nil, []any{&relay.ID, &relay.Name, &relay.Expires, &relay.Alive, &relay.Shards}, func() { r.Relays = append(r.Relays, relay) }),
	)
	for _, t := range topics {
		r.Topics = append(r.Topics, *t)
	}
	slices.SortFunc(r.Topics, func(a, b TopicReport) int {
		return cmp.Or(cmp.Compare(b.Pending.N, a.Pending.N), cmp.Compare(b.Failed.N, a.Failed.N), cmp.Compare(a.Topic, b.Topic))
	})
	r.addStates(states)
	for i, t := range r.Topics {
		r.Topics[i] = r.bound(t)
	}
	return r, err
}

// waiting is what a shard holds of a topic.
type waiting struct {
	shard          int
	topic          string
	n              int64
	oldest, moving *time.Time
}

// earlier is the earlier one of two times, of which each may be nil.
func earlier(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

// Age is how long ago that was, by the report's clock; 0 for nil.
func (r *Report) Age(t *time.Time) time.Duration {
	if t == nil {
		return 0
	}
	return max(r.At.Sub(*t), 0)
}
