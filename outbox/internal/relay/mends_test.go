package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/outbox/internal/lease"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// mends are the properties that hold only with a decision, each with what the relay does without it.
var mends = map[string]struct {
	holds   func(*rapid.T, func(*rules))
	without func(*rules)
}{
	// A topic that does not get on, and has more events than the relay holds, costs other topics nothing.
	"a dead topic stops no other": {
		func(t *rapid.T, change func(*rules)) {
			w := newWorld(t, 2)
			w.rules = change
			w.topic("dead").down = true
			keys := rapid.IntRange(0, 5).Draw(t, "keys of the dead topic")
			for i := range rapid.IntRange(200, 500).Draw(t, "events") {
				if keys == 0 {
					w.write("dead", "", int16(i)%2)
				} else {
					w.write("dead", fmt.Sprint("d", i%keys), int16(i%keys)%2)
				}
			}
			for i := range 100 {
				w.write("well", fmt.Sprint("k", i%7), int16(i%7)%2)
			}
			w.start()
			w.run(10 * time.Second)
			require.Equal(t, 100, w.topic("well").took, "%s", w)
			w.topic("dead").down = false
			w.run(time.Minute)
			require.Empty(t, w.rows, "%s", w)
			require.Empty(t, w.overtaken)
		},
		func(r *rules) {
			r.quota = func(*Core) int { return 1 << 30 }
			r.hungry = func(s *shard, now time.Time) bool { return len(s.held) < 80 && s.hungry(now) }
		},
	},
	// A topic that takes its batches slowly leaves others room for theirs.
	"a slow topic holds up no other": {
		func(t *rapid.T, change func(*rules)) {
			w := newWorld(t, 1)
			w.rules = change
			w.topic("slow").takes = time.Duration(rapid.IntRange(5, 50).Draw(t, "seconds")) * time.Second
			for i := range rapid.IntRange(50, 500).Draw(t, "slow events") {
				w.write("slow", fmt.Sprint("s", i), 0)
			}
			for i := range 50 {
				w.write("well", fmt.Sprint("k", i%7), 0)
			}
			w.start()
			w.run(4 * time.Second)
			require.False(t, slices.ContainsFunc(w.rows, func(r *worldRow) bool { return r.Topic == "well" }), "%s", w)
		},
		func(r *rules) {
			r.room = func(s *shard, q *queue, _ time.Time) (int, bool) {
				n := s.core.cfg.BatchSize - s.unsaved
				return n, n <= 0
			}
		},
	},
	// A relay that gets nothing published gives its shards to one that does.
	"a relay whose credentials have expired loses its shards": {
		func(t *rapid.T, change func(*rules)) {
			w := newWorld(t, 4)
			w.rules = change
			w.start().down = true
			w.run(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds alone")) * time.Second)
			for i := range 50 {
				w.write("a", fmt.Sprint("k", i%7), int16(i%7)%4)
			}
			w.start()
			w.run(40 * time.Second)
			require.Empty(t, w.rows, "%s", w)
			require.Empty(t, w.overtaken)
		},
		func(r *rules) { r.struggles = func(*Core, time.Time) bool { return false } },
	},
	// Failed events get their turn although the backlog never ends.
	"a failed event is tried again beside a backlog": {
		func(t *rapid.T, change func(*rules)) {
			w := newWorld(t, 1)
			w.rules = change
			w.topic("a").takes = 20 * time.Millisecond
			first := w.write("a", "failed", 0)
			w.topic("a").refuse[first.EventID] = errRefuse
			n := w.start()
			w.run(time.Second)
			require.Equal(t, errRefuse.Error(), w.dead[first.EventID])
			clear(w.topic("a").refuse)
			for i := range rapid.IntRange(1500, 1600).Draw(t, "backlog") {
				w.write("a", fmt.Sprint("k", i), 0)
			}
			w.failed[0].command = "retry"
			n.core.Apply(w.now, step.Woken{All: true, Look: true})
			w.run(2 * time.Second)
			require.NotEmpty(t, w.rows, "the backlog is still there")
			require.Equal(t, 1, w.published[first.EventID])
		},
		func(r *rules) { r.turn = func(q *queue) bool { return len(q.failed) > 0 && len(q.ready) == 0 } },
	},
	// A relay gives back what exceeds its share, and no more.
	"a relay keeps its share": {
		func(t *rapid.T, change func(*rules)) {
			w := newWorld(t, 16)
			w.rules = change
			w.topic("a").takes = 12 * time.Second
			n := w.start()
			w.run(time.Second)
			for i := range int16(16) {
				w.write("a", fmt.Sprint("k", i), i)
			}
			n.core.Apply(w.now, step.Woken{All: true})
			w.run(time.Second)
			for range rapid.IntRange(1, 3).Draw(t, "relays that join") {
				w.start()
			}
			share := (16 + len(w.nodes) - 1) / len(w.nodes)
			for range 40 {
				w.run(500 * time.Millisecond)
				require.GreaterOrEqual(t, len(n.core.Held()), share)
			}
			require.Len(t, n.core.Held(), share)
		},
		func(r *rules) {
			r.surplus = func(fair int, held []lease.Held) (list []int16) {
				for _, h := range held {
					if !h.Leaving && len(list) < len(held)-fair {
						list = append(list, h.Shard)
					}
				}
				return list
			}
		},
	},
	// A relay that wakes after its leases were taken asks before it sends.
	"a woken relay sends nothing": {
		func(t *rapid.T, change func(*rules)) {
			w := newWorld(t, 1)
			w.rules = change
			for range rapid.IntRange(2, 20).Draw(t, "events") {
				w.write("a", "k", 0)
			}
			first := w.rows[0].EventID
			w.topic("a").refuse[first] = errOdd
			n := w.start()
			w.run(time.Duration(rapid.IntRange(100, 3000).Draw(t, "ms")) * time.Millisecond)
			n.stopped = true
			w.topic("a").refuse[first] = errRefuse // the other one sets it aside, and those behind it
			w.start()
			w.run(worldTTL + 5*time.Second)
			w.write("a", "k", 0)
			n.stopped = false
			n.next()
			for range 30 { // before it hears of its leases
				for _, p := range slices.Clone(n.pending) {
					if _, ok := p.action.(step.Renew); !ok && n.carryOut(p) {
						n.answer(p)
					}
				}
				w.now = w.now.Add(100 * time.Millisecond)
				n.next()
			}
			require.Empty(t, w.overtaken, "%v", w)
			require.Zero(t, w.first["k"], "%v", w)
		},
		func(r *rules) {
			r.expired = func(*shard, time.Time) bool { return false }
			r.sends = func(step.Publish, time.Time) bool { return true }
		},
	},
	// The relay does not take rows above deferred ones for all that there is, although it scans from there.
	"a scan above deferred rows forgets none of them": {
		func(t *rapid.T, change func(*rules)) {
			w := newWorld(t, 1)
			w.config = func(c *Config) { c.BatchSize, c.MaxInFlight = 2, 4 }
			w.rules = func(r *rules) {
				r.quota = func(*Core) int { return 3 }
				if change != nil {
					change(r)
				}
			}
			w.topic("a").takes = 100 * time.Millisecond
			keys := rapid.IntRange(1, 3).Draw(t, "keys")
			for i := range 60 {
				w.write("a", fmt.Sprint("k", i%keys), 0)
			}
			n := w.start()
			w.run(time.Duration(rapid.IntRange(100, 1500).Draw(t, "ms")) * time.Millisecond)
			bulk := w.begin("b", "bulk", 0)
			w.sequences[0] += 10_001
			if rapid.Bool().Draw(t, "an old key") {
				w.write("a", "k0", 0)
			} else {
				w.write("b", "k0", 0)
			}
			n.core.Apply(w.now, step.Woken{All: true})
			w.run(time.Duration(rapid.IntRange(0, 1500).Draw(t, "ms")) * time.Millisecond)
			w.end(bulk, false)
			w.run(time.Minute)
			require.Empty(t, w.overtaken)
			require.Empty(t, w.rows, "%s", w)
		},
		func(r *rules) { r.scan = func(step.Request) int64 { return 0 } },
	},
	// A scan gets past the rows of a dead topic although a transaction that is open keeps it from ending.
	"a dead topic stops no other while a transaction is open": {
		func(t *rapid.T, change func(*rules)) {
			w := newWorld(t, 1)
			w.rules = change
			w.topic("dead").down = true
			open := w.begin("well", "open", 0)
			for i := range rapid.IntRange(100, 1000).Draw(t, "dead events") {
				w.write("dead", fmt.Sprint("d", i), 0)
			}
			for i := range 50 {
				w.write("well", fmt.Sprint("k", i%7), 0)
			}
			w.start()
			w.run(10 * time.Second)
			require.Equal(t, 50, w.topic("well").took, "%s", w)
			for i := range 50 {
				w.write("well", fmt.Sprint("k", i%7), 0)
			}
			w.run(10 * time.Second)
			require.Equal(t, 100, w.topic("well").took, "%s", w)
			w.end(open, true)
			w.topic("dead").down = false
			w.run(time.Minute)
			require.Empty(t, w.rows, "%s", w)
			require.Empty(t, w.overtaken)
		},
		func(r *rules) { r.passes = func(*shard) int { return 0 } },
	},
}

func TestMends(t *testing.T) {
	t.Parallel()
	for name, m := range mends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { m.holds(t, nil) })
			assert.True(t, fails(t, func(t *rapid.T) { m.holds(t, m.without) }), "the test finds nothing without the mend")
		})
	}
}

// fails reports whether rapid finds a world in which the check fails.
func fails(t *testing.T, check func(*rapid.T)) (found bool) {
	t.Helper()
	for range 20 {
		failed := &recording{TB: t}
		func() {
			defer func() { _ = recover() }()
			rapid.Check(failed, check)
		}()
		if failed.failed {
			return true
		}
	}
	return false
}

// recording is a test whose failure is no failure.
type recording struct {
	testing.TB
	failed bool
}

func (r *recording) Failed() bool          { return r.failed }
func (r *recording) Fail()                 { r.failed = true }
func (r *recording) FailNow()              { r.failed = true; panic("failed") }
func (r *recording) Error(...any)          { r.failed = true }
func (r *recording) Errorf(string, ...any) { r.failed = true }
func (r *recording) Fatal(...any)          { r.FailNow() }
func (r *recording) Fatalf(string, ...any) { r.FailNow() }
