package relay

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// chance drives a world by chance: writers, relays that are killed, stopped and started, answers that are late or lost, topics
// that fail, and operators.
func chance(t *rapid.T, w *world, steps int) {
	topics := []string{"a", "b"} // and c, to which a is redirected
	alive := func() (nodes []*node) {
		for _, n := range w.nodes {
			if !n.dead {
				nodes = append(nodes, n)
			}
		}
		return nodes
	}
	w.start()
	for range steps {
		switch op := rapid.IntRange(0, 101).Draw(t, "op"); {
		case op < 20:
			k := rapid.IntRange(0, 6).Draw(t, "key")
			name := fmt.Sprint("k", k)
			if k == 6 {
				name = ""
			}
			w.begin(rapid.SampledFrom(topics).Draw(t, "topic"), name, int16(k)%w.shards)
		case op < 38:
			if len(w.open) > 0 {
				i := rapid.IntRange(0, len(w.open)-1).Draw(t, "transaction")
				w.end(w.open[i], rapid.IntRange(0, 5).Draw(t, "commit") > 0)
			}
		case op < 80:
			nodes := alive()
			if len(nodes) == 0 {
				w.start()
				continue
			}
			n := nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "relay")]
			if n.stopped || len(n.pending) == 0 {
				continue
			}
			p := n.pending[rapid.IntRange(0, len(n.pending)-1).Draw(t, "action")]
			if p.answer == nil {
				switch rapid.IntRange(0, 15).Draw(t, "fate") {
				case 0: // it does not arrive
					p.answer = lost(p.action, p.began)
				case 1: // its answer is lost
					if n.carryOut(p) {
						p.answer = lost(p.action, p.began)
					}
				default:
					n.carryOut(p)
				}
			} else {
				n.answer(p)
			}
		case op < 90:
			w.pass(time.Duration(rapid.SampledFrom([]int{1, 5, 20, 100, 400, 1500}).Draw(t, "ms")) * time.Millisecond)
		case op < 92:
			if nodes := alive(); len(nodes) > 0 {
				n := nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "relay")]
				n.stopped = !n.stopped
				n.next()
			}
		case op < 93:
			if nodes := alive(); len(nodes) > 0 {
				nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "relay")].dead = true
			}
		case op < 94: // a relay is stopped for longer than its leases last
			if nodes := alive(); len(nodes) > 0 {
				n := nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "relay")]
				n.stopped = true
				w.run(worldTTL + time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms"))*time.Millisecond)
				n.stopped = false
				n.next()
			}
		case op < 95:
			if len(alive()) < 3 {
				w.start()
			}
		case op < 97:
			name := rapid.SampledFrom(topics).Draw(t, "topic")
			topic := w.topic(name)
			switch rapid.IntRange(0, 9).Draw(t, "trouble") {
			case 5:
				if w.paused[name] == 0 {
					w.pauses++
					w.paused[name] = w.pauses
				}
			case 6:
				delete(w.paused, name)
			case 9:
				w.discard(name, rapid.IntRange(1, 5).Draw(t, "limit"))
			case 7:
				w.redirects["a"] = rapid.SampledFrom([]string{"b", "c"}).Draw(t, "to")
			case 8:
				delete(w.redirects, "a")
			case 0:
				topic.wedged, w.hung = !topic.wedged, true
			case 1:
				topic.takes = time.Duration(rapid.SampledFrom([]int{0, 300, 8000, 100_000}).Draw(t, "ms")) * time.Millisecond
			default:
				topic.down = !topic.down
			}
		case op < 98:
			if len(w.rows) > 0 {
				r := w.rows[rapid.IntRange(0, len(w.rows)-1).Draw(t, "event")]
				w.topic(r.Topic).refuse[r.EventID] = []error{errRefuse, errOdd}[rapid.IntRange(0, 1).Draw(t, "error")]
			}
		case op < 99: // a transaction with many events is rolled back
			w.sequences[int16(rapid.IntRange(0, int(w.shards)-1).Draw(t, "shard"))] += int64(rapid.SampledFrom([]int{100, 10_001}).Draw(t, "events"))
		case op < 100: // the server is restarted
			for _, n := range w.nodes {
				n.moved = true
			}
		default:
			if len(w.failed) > 0 {
				f := w.failed[rapid.IntRange(0, len(w.failed)-1).Draw(t, "failed")]
				f.command = []string{"retry", "discard"}[rapid.IntRange(0, 1).Draw(t, "command")]
			}
		}
	}
}

// settled ends all faults, and lets the relays finish.
func (w *world) settled() {
	for _, t := range slices.Clone(w.open) {
		w.end(t, true)
	}
	clear(w.paused)
	for _, topic := range w.topics {
		topic.down, topic.wedged, topic.takes = false, false, 0
		clear(topic.refuse)
	}
	for _, n := range w.nodes {
		n.stopped = false
		n.next()
	}
	w.start()
	retry := func() {
		for _, f := range w.failed {
			if f.state == step.Dead {
				f.command = "retry"
			}
		}
	}
	retry()
	if w.hung { // a relay does not take a shard again for minutes that it gave back because its publisher did not return
		w.run(15 * time.Minute)
	}
	w.run(2 * time.Minute)
	retry() // what failed meanwhile for the second time
	w.run(2 * time.Minute)
}

func worldHolds(t *rapid.T, w *world) {
	if w.config == nil && rapid.Bool().Draw(t, "gathers") {
		w.config = func(c *Config) { c.Gather = 20 * time.Millisecond }
	}
	chance(t, w, 250)
	w.settled()
	require.Empty(t, w.overtaken, "order of a key:\n%s", strings.Join(w.history, "\n"))
	require.Empty(t, w.disobeyed, "what operators have set holds")
	for id, before := range w.discarded {
		require.Equal(t, before, w.published[id], "event %s is discarded:\n%s", id, strings.Join(w.history, "\n"))
	}
	require.Empty(t, w.rows, "nothing is left in the outbox:\n%s", w)
	require.Empty(t, w.failed, "nothing is left among the failed events:\n%s", w)
	for _, n := range w.nodes {
		if !n.dead {
			n.rests(t)
		}
	}
}

// rests checks that a relay with nothing to do counts nothing.
func (n *node) rests(t *rapid.T) {
	c := n.core
	require.True(t, c.Drained())
	require.Empty(t, c.ghosts)
	require.Nil(t, c.noted, "%s", n.world)
	for _, topic := range c.topics {
		require.False(t, topic.Asking())
	}
	for _, s := range c.order {
		counts := []int{len(s.held), s.bytes, s.bare, s.unsaved, s.deferring, len(s.keys), len(s.failing), len(s.stalled), len(s.blocked), len(s.inFlight), len(s.settles), len(s.aside), len(s.promote)}
		require.Equal(t, make([]int, len(counts)), counts, "shard %d of relay %d:\n%s", s.Shard, n.id, n.world)
		for _, q := range s.order {
			counts := []int{q.held, q.bytes, q.unsaved, len(q.ready), len(q.failed)}
			require.Equal(t, make([]int, len(counts)), counts, "topic %s:\n%s", q.topic.Name, n.world)
		}
	}
}

// Whatever happens to relays, answers, topics and leases: every committed event is published, in the order of its key, and
// nothing stands still when the faults end.
func TestNothingIsLostOvertakenOrStuck(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { worldHolds(t, newWorld(t, 3)) })
}

// With a quota of few events a topic leaves most of its events in the table.
func TestDeferredEventsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 2)
		w.config = func(c *Config) { c.BatchSize, c.MaxInFlight = 2, 4 }
		w.rules = func(r *rules) { r.quota = func(*Core) int { return 3 } }
		worldHolds(t, w)
	})
}

// A relay that wakes after another one held its shard and was lost too knows nothing of what happened meanwhile.
func TestLeaseThatAnotherRelayHeldMeanwhileIsAnotherLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	first := w.start()
	w.start()
	w.run(10 * time.Second)
	require.Len(t, first.core.Held(), 1)
	lease := first.core.order[0].Ref
	first.stopped = true
	w.run(worldTTL + 2*time.Second) // the other one takes it
	require.Equal(t, 1, w.leases[lease.Shard].relay)
	w.nodes[1].dead = true
	w.now = w.now.Add(worldTTL + time.Second)
	first.stopped = false
	first.next()
	w.run(worldTTL)
	require.Equal(t, []int16{0, 1}, first.core.Held())
	require.NotEqual(t, lease, first.core.shards[lease.Shard].Ref)
}

// A topic is asked again by another shard when the one that asked is lost, and its publisher does not return.
func TestShardThatAsksIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	topic := w.topic("a")
	topic.down = true
	w.write("a", "k", 0)
	n := w.start()
	w.run(time.Second)
	topic.down, topic.wedged = false, true
	w.run(2 * time.Second)
	require.True(t, n.core.topics["a"].Asking())
	topic.wedged = false // only that batch hangs
	w.write("a", "l", 1)
	n.pending = slices.DeleteFunc(n.pending, func(p *pending) bool { _, ok := p.action.(step.Publish); return ok })
	w.run(2 * time.Minute)
	require.Empty(t, w.sorted(1), "%s", w)
	w.run(10 * time.Minute)
	require.Empty(t, w.rows, "%s", w)
}

// A relay that stops keeps its leases until what is in flight was answered.
func TestStoppedRelayFinishes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.topic("a").takes = worldTTL + 3*time.Second
	w.write("a", "k", 0)
	n := w.start()
	w.run(time.Second)
	n.core.Apply(w.now, step.Stop{})
	n.next()
	w.start()
	w.run(worldTTL + time.Second)
	require.Equal(t, 0, w.leases[0].relay, "%s", w)
	w.run(worldTTL)
	require.True(t, n.core.Drained())
	require.Equal(t, map[string]int{"1": 1}, w.published)
}

// What became of failed events is recorded before a relay has drained.
func TestDrainedWhenFailedEventsAreRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	first := w.write("a", "failed", 0)
	w.topic("a").refuse[first.EventID] = errRefuse
	n := w.start()
	w.run(time.Second)
	clear(w.topic("a").refuse)
	w.failed[0].command = "retry"
	n.core.Apply(w.now, step.Woken{Look: true})
	for range 100 {
		n.next()
		for _, p := range slices.Clone(n.pending) {
			if _, ok := p.action.(step.SettleFailed); ok {
				n.pending = slices.DeleteFunc(n.pending, func(o *pending) bool { return o == p })
				n.core.Apply(w.now, step.Stop{})
				n.core.Apply(w.now, lost(p.action, p.began))
				require.False(t, n.core.Drained(), "it was published, and that is not recorded")
				w.run(10 * time.Second)
				require.True(t, n.core.Drained())
				require.Empty(t, w.failed)
				return
			}
			n.carryOut(p)
			n.answer(p)
		}
	}
	require.Fail(t, "it was never sent")
}

// An event that an operator discards during an outage is not sent after it.
func TestDiscardedInAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	topic := w.topic("a")
	for i := range 30 {
		e := w.write("a", fmt.Sprint("k", i), 0)
		topic.refuse[e.EventID] = errRefuse
	}
	n := w.start()
	w.run(time.Second)
	require.Len(t, w.failed, 30)
	clear(topic.refuse)
	topic.down = true
	for _, command := range []string{"retry", "discard"} {
		for _, f := range w.failed {
			f.command = command
		}
		n.core.Apply(w.now, step.Woken{Look: true})
		w.run(3 * time.Second)
	}
	require.Empty(t, w.failed)
	topic.down = false
	w.run(10 * time.Second)
	require.Empty(t, w.published)
}

// While one shard asks for a topic, the others wait for the answer.
func TestNothingSpinsWhileAShardAsks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.topic("a").down = true
	n := w.start()
	w.run(time.Second)
	w.write("a", "k", 0)
	w.write("a", "l", 1)
	w.run(2 * time.Second)
	w.topic("a").takes = 10 * time.Second
	w.run(3 * time.Second)
	require.True(t, n.core.topics["a"].Asking())
	w.pass(time.Millisecond)
	require.True(t, n.wait.After(w.now), "%s", w)
}

// A poison message is set aside although another topic of its shard, whose events come first, is down.
func TestPoisonBesideADeadTopic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.topic("dead").down = true
	w.write("dead", "d", 0)
	poison := w.write("well", "p", 0)
	poison.poison = true
	for range 15 {
		w.start()
		w.run(20 * time.Second)
	}
	require.True(t, slices.ContainsFunc(w.failed, func(f *worldFailed) bool { return f.EventID == poison.EventID }), "%s", w)
}

// A renewal takes shards, and its answer is lost: the next one has them.
func TestShardsTakenWithoutAnAnswerAreHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	n := w.start()
	p := n.pending[0]
	require.IsType(t, step.Renew{}, p.action)
	require.True(t, n.carryOut(p))
	p.answer = lost(p.action, p.began)
	n.answer(p)
	w.run(worldTTL / 2)
	require.Len(t, n.core.Held(), 4)
}

// A shard whose publisher does not return in one relay is taken by another one, although that has its share.
func TestShardOfAPublisherThatHangsIsTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	n := w.start()
	w.start()
	w.run(10 * time.Second)
	require.Len(t, n.core.Held(), 2)
	n.wedged = "hangs"
	for i := range int16(4) {
		w.write("hangs", fmt.Sprint("k", i), i)
	}
	for range 90 { // it does not struggle
		for i := range int16(4) {
			w.write("well", fmt.Sprint("w", i), i)
		}
		w.run(time.Second)
	}
	require.Equal(t, 4, w.topic("hangs").took, "%s", w)
}

func TestWorldAtRest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	for i := range 500 {
		w.write("a", fmt.Sprint("k", i%7), int16(i%7)%4)
	}
	w.start()
	w.run(10 * time.Second)
	assert.Empty(t, w.rows)
	assert.Empty(t, w.overtaken)
	assert.Equal(t, 500, w.sends, "each event is sent once")
}

// An operator's command makes the relay look at once, also after a look that failed.
func TestFailedPollIsRepeatedAtOnceForACommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	n := w.start()
	w.run(time.Second)
	n.core.Apply(w.now, step.Woken{Look: true})
	n.core.Apply(w.now, step.Polled{Err: errOdd})
	actions, _ := n.core.Next(w.now)
	var reports, polls int
	for _, a := range actions {
		switch a := a.(type) {
		case step.Report:
			reports++
			assert.Zero(t, a.In)
		case step.Poll:
			polls++
		}
	}
	assert.Equal(t, 1, reports)
	assert.Equal(t, 1, polls)
}
