package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// The events of a paused topic wait, also in relays that start meanwhile. Others go on, and the relay rests. After the resume
// they come in order.
func TestPausedTopicWaits(t *testing.T) {
	t.Parallel()
	const events = 200 // more than a shard holds of a topic
	w := newWorld(t, 2)
	w.rules = func(r *rules) { r.quota = func(*Core) int { return 30 } }
	w.paused["a"] = 1
	for i := range events {
		w.write("a", fmt.Sprint("a", i%4), int16(i%2))
	}
	first := w.start()
	w.run(time.Second)
	w.write("b", "a1", 1) // waits behind an event of topic a
	for range 40 {        // for longer than a relay may struggle
		w.write("b", "b", 0)
		w.run(time.Second)
	}
	require.Zero(t, w.topic("a").took)
	require.Equal(t, 40, w.topic("b").took)
	require.False(t, first.struggling)
	require.Greater(t, first.wait.Sub(w.now), 10*time.Millisecond, "it does not spin: %s", w)

	first.dead = true
	second := w.start()
	w.run(worldTTL + 30*time.Second)
	require.Zero(t, w.topic("a").took)
	require.Len(t, second.core.Held(), 2)
	require.False(t, second.struggling, "a topic that waits for an operator is no failure of the relay")
	for _, s := range second.core.order {
		require.Zero(t, s.bytes, "what waits for an operator holds no payload")
	}

	delete(w.paused, "a")
	second.core.Apply(w.now, step.Woken{Look: true})
	w.run(time.Second)
	require.Equal(t, events, w.topic("a").took, "%s", w)
	require.Empty(t, w.rows, "%s", w)
	require.Empty(t, w.overtaken)
}

// Failed events of a paused topic stay where they are, and take no other topic's turn.
func TestFailedEventsOfAPausedTopicWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	for i := range 300 { // more than one fetch
		e := w.write("a", fmt.Sprint("k", i), 0)
		w.topic("a").refuse[e.EventID] = errRefuse
	}
	b := w.write("b", "b", 0)
	w.topic("b").refuse[b.EventID] = errRefuse
	n := w.start()
	w.run(5 * time.Second)
	require.Len(t, w.failed, 301)
	w.paused["a"] = 1
	clear(w.topic("a").refuse)
	clear(w.topic("b").refuse)
	for _, f := range w.failed {
		f.command = "retry"
	}
	n.core.Apply(w.now, step.Woken{Look: true})
	w.run(3 * time.Second)
	require.Equal(t, 0, w.topic("a").took)
	require.Equal(t, 1, w.topic("b").took, "%s", w)
	delete(w.paused, "a")
	w.run(5 * time.Second)
	require.Equal(t, 300, w.topic("a").took, "%s", w)
	require.Empty(t, w.failed)
}

// A topic that the broker does not take is not asked while it is paused.
func TestPauseOfATopicThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	topic := w.topic("a")
	topic.down = true
	for i := range 40 {
		w.write("a", fmt.Sprint("k", i), 0)
	}
	n := w.start()
	w.run(500 * time.Millisecond)
	w.paused["a"] = 1
	n.core.Apply(w.now, step.Woken{Look: true})
	n.next()
	w.run(100 * time.Millisecond)
	sent := w.sends
	require.NotZero(t, sent)
	w.run(30 * time.Second)
	require.Equal(t, sent, w.sends, "nothing more is sent")
	require.Greater(t, n.wait.Sub(w.now), 10*time.Millisecond, "it does not spin")
	topic.down = false
	delete(w.paused, "a")
	w.run(20 * time.Second)
	require.Empty(t, w.rows, "%s", w)
	require.Equal(t, 40, topic.took)
}

// An event that is discarded while its topic is paused is not sent after the resume, although the relay had read it before. Those
// that waited for it go on, also for one that the relay had left in the table.
func TestDiscardedWhileItsTopicIsPaused(t *testing.T) {
	t.Parallel()
	const events = 100 // more than a shard holds of a topic
	w := newWorld(t, 1)
	w.rules = func(r *rules) { r.quota = func(*Core) int { return 30 } }
	topic := w.topic("a")
	topic.takes = time.Second
	for i := range events {
		w.write("a", fmt.Sprint("k", i%7), 0)
	}
	for i := range 7 {
		w.write("b", fmt.Sprint("k", i), 0)
	}
	n := w.start()
	w.run(100 * time.Millisecond)
	require.NotZero(t, n.core.shards[0].queues["a"].ready)
	w.paused["a"] = 1
	w.discard("a", events)
	require.Empty(t, w.discarded, "a batch is in flight")
	n.core.Apply(w.now, step.Woken{Look: true})
	w.run(5 * time.Second)
	took := topic.took
	require.Less(t, took, events)
	w.discard("a", events)
	require.Len(t, w.discarded, events-took)
	delete(w.paused, "a")
	w.run(10 * time.Second)
	require.Equal(t, took, topic.took)
	require.Equal(t, 7, w.topic("b").took, "%s", w)
	require.Empty(t, w.disobeyed)
	require.Empty(t, n.core.shards[0].keys, "%s", w)
	require.Zero(t, n.core.shards[0].deferring)
}

// A relay says with its renewals why events of a topic wait: since when the broker takes none, with which error, and when it
// tries again; that a topic is slow; and that it has seen a pause, once nothing of the topic is in flight.
func TestWhyTopicsWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.topic("dead").down = true
	w.topic("slow").takes = 3 * time.Second
	for i := range 200 {
		w.write("dead", fmt.Sprint("d", i), int16(i%2))
		w.write("slow", fmt.Sprint("s", i), int16(i%2))
		w.write("well", fmt.Sprint("w", i), int16(i%2))
	}
	n := w.start()
	w.run(10 * time.Second)
	require.Len(t, n.topics, 2, "%v", n.topics)
	dead, slow := n.topics[0], n.topics[1]
	require.Equal(t, step.TopicState{Topic: "dead", State: step.TopicFailing, For: dead.For, Next: dead.Next, Error: "down"}, dead)
	require.InDelta(t, 10, dead.For.Seconds(), worldTTL.Seconds()/4+0.1)
	require.Positive(t, dead.Next)
	require.LessOrEqual(t, dead.Next, backoff.MostOfTopic)
	require.Equal(t, step.TopicState{Topic: "slow", State: step.TopicSlow, For: slow.For}, slow)
	require.InDelta(t, 10, slow.For.Seconds(), worldTTL.Seconds()/4+0.1)

	w.paused["slow"], w.paused["dead"], w.paused["other"] = 7, 8, 9
	n.core.Apply(w.now, step.Woken{Look: true})
	n.next()
	w.run(100 * time.Millisecond)
	require.Equal(t, step.TopicState{Topic: "slow"}, n.core.topics["slow"].State(n.core.use("slow", w.now), w.now), "its batch is in flight")
	w.run(10 * time.Second)
	require.Equal(t, []step.TopicState{
		{Topic: "dead", State: step.TopicPaused, Pause: 8}, {Topic: "other", State: step.TopicPaused, Pause: 9}, {Topic: "slow", State: step.TopicPaused, Pause: 7},
	}, n.topics)

	clear(w.paused)
	w.topic("dead").down, w.topic("slow").takes = false, 0
	w.run(10 * time.Second)
	require.Empty(t, n.topics, "%s", w)
}

// An error of unknown meaning makes a topic fail, too; one that is an event's own does not.
func TestTopicFailsByErrorsOfUnknownMeaning(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	for i := range 10 {
		e := w.write("odd", fmt.Sprint("k", i), 0)
		w.topic("odd").refuse[e.EventID] = errOdd
	}
	rejected := w.write("fine", "k", 0)
	w.topic("fine").refuse[rejected.EventID] = errRefuse
	n := w.start()
	w.run(10 * time.Second)
	require.Len(t, n.topics, 1, "%v", n.topics)
	require.Equal(t, "odd", n.topics[0].Topic)
	require.Equal(t, step.TopicFailing, n.topics[0].State)
	require.Equal(t, errOdd.Error(), n.topics[0].Error)
	clear(w.topic("odd").refuse)
	w.run(10 * time.Second)
	require.Empty(t, n.topics)
}

// An error that does not say whether the event or the broker is at fault does not end an outage. The topic goes on to be probed by one
// shard at a time, with backoff, until the broker takes an event.
func TestErrorOfUnknownMeaningEndsNoOutage(t *testing.T) {
	t.Parallel()
	for name, failed := range map[string]bool{"of an event": false, "of a failed event": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 4)
			topic := w.topic("a")
			for i := range 40 {
				e := w.write("a", fmt.Sprint("k", i), int16(i%4))
				if failed {
					topic.refuse[e.EventID] = errRefuse
				}
			}
			n := w.start()
			topic.down = !failed
			w.run(2 * time.Second)
			if failed {
				require.Len(t, w.failed, 40)
				topic.down = true
				w.write("a", "other", 0)
				w.run(2 * time.Second)
			}
			require.Equal(t, step.TopicFailing, n.core.topics["a"].State(n.core.use("a", w.now), w.now).State)
			for _, e := range w.rows {
				topic.refuse[e.EventID] = errOdd
			}
			for _, e := range w.failed {
				topic.refuse[e.EventID], e.command = errOdd, "retry"
			}
			topic.down = false
			before := w.sends
			w.run(5 * time.Second)
			require.Less(t, w.sends-before, 12)
			clear(topic.refuse)
			w.run(20 * time.Second)
			require.Empty(t, w.rows, "%s", w)
			require.Empty(t, w.failed, "%s", w)
		})
	}
}

// A redirected topic's events go to the other topic, those that failed too; each key keeps its order across both topics. A topic
// that fails goes on at once when it is redirected to one that does not.
func TestRedirectedTopic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.topic("a").down = true
	refused := w.write("a", "refused", 0)
	w.topic("a").refuse[refused.EventID] = errRefuse
	for i := range 60 {
		w.write([]string{"a", "b"}[i/2%2], fmt.Sprint("k", i%7), int16(i%7%2))
	}
	n := w.start()
	w.run(5 * time.Second)
	require.Zero(t, w.topic("a").took)
	w.redirects["a"] = "b"
	n.core.Apply(w.now, step.Woken{Look: true})
	w.run(time.Second)
	require.Equal(t, 60, w.topic("b").took, "%s", w)
	require.Len(t, w.failed, 1)
	require.Empty(t, w.overtaken)

	clear(w.topic("a").refuse)
	w.failed[0].command = "retry"
	w.run(3 * time.Second)
	require.Equal(t, 61, w.topic("b").took, "a failed event goes there, too")
	w.paused["b"] = 1
	n.core.Apply(w.now, step.Woken{Look: true})
	w.run(time.Second)
	w.write("a", "k", 0)
	w.run(5 * time.Second)
	require.Equal(t, 61, w.topic("b").took, "the destination is paused")

	delete(w.redirects, "a")
	w.topic("a").down = false
	w.run(5 * time.Second)
	require.Equal(t, 1, w.topic("a").took)
	require.Empty(t, w.rows)
	require.Empty(t, w.overtaken)
	require.Empty(t, w.disobeyed)
}

// A relay asks what operators have set with each poll, and when it takes shards. The answers may come in another order than they were
// given, and an old one once resumed a topic.
func TestOldSettingsDoNotReplaceNewerOnes(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]func(step.Action) bool{
		"when shards are taken": func(a step.Action) bool { _, ok := a.(step.LoadBlocked); return ok },
		"with a poll":           func(a step.Action) bool { _, ok := a.(step.Poll); return ok },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			n := w.start()
			n.core.Apply(w.now, step.Woken{Look: true})
			require.True(t, n.carryOut(n.pending[0]))
			n.answer(n.pending[0]) // it has leases
			asked := slices.DeleteFunc(slices.Clone(n.pending), func(p *pending) bool {
				switch p.action.(type) {
				case step.LoadBlocked, step.Poll:
					return false
				}
				return true
			})
			require.Len(t, asked, 2)
			if late(asked[0].action) {
				slices.Reverse(asked)
			}
			require.True(t, n.carryOut(asked[1]))
			w.pauses++
			w.paused["a"] = w.pauses
			require.True(t, n.carryOut(asked[0]))
			n.answer(asked[0])
			require.NotZero(t, n.core.topics.Of("a").Paused)
			n.unpolled = true
			w.write("a", "k", 0)
			n.answer(asked[1])
			w.run(time.Second)
			assert.NotZero(t, n.core.topics.Of("a").Paused)
			assert.Zero(t, w.topic("a").took)
			n.unpolled = false
			delete(w.paused, "a")
			w.run(3 * time.Second)
			assert.Empty(t, w.rows, "%s", w)
		})
	}
}

// When a lease ends, its batches are canceled. A topic whose batch was canceled does not fail, in no other shard either.
func TestCanceledBatchIsNoOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.topic("a").takes = time.Minute
	w.write("a", "k", 0)
	w.write("a", "l", 1)
	n := w.start()
	w.run(time.Second)
	n.core.end(n.core.shards[0])
	require.Len(t, n.core.ended, 1)
	for _, p := range slices.Clone(n.pending) {
		if a, ok := p.action.(step.Publish); ok && a.Shard == 0 {
			p.answer = step.Published{Ref: a.Ref, Queue: a.Queue, Results: []error{errDown}} // as canceled
			n.answer(p)
		}
	}
	require.Empty(t, n.core.ended)
	topic := n.core.topics.Of("a")
	assert.False(t, topic.Stands(w.now))
	assert.Empty(t, topic.State(n.core.use("a", w.now), w.now).State)
}

// Events of a topic that waits cost the other topics' reads time. So few of them are held, and none is lost.
func TestWaitingTopicIsHeldLittle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.topic("dead").down = true
	w.write("dead", "first", 0)
	n := w.start()
	w.run(time.Second)
	for i := range 500 {
		w.write("dead", fmt.Sprint("k", i%7), 0)
		w.write("well", fmt.Sprint("w", i%7), 0)
	}
	for range 100 {
		w.run(100 * time.Millisecond)
		require.LessOrEqual(t, n.core.order[0].queues["dead"].held, n.core.quota()/16+1)
	}
	require.Equal(t, 500, w.topic("well").took)
	w.topic("dead").down = false
	w.run(10 * time.Second)
	require.Empty(t, w.rows, "%s", w)
	require.Empty(t, w.overtaken)
}

// The topic stands because of another shard's events, and the shard's own events of it wait behind a paused topic. Those that arrive then
// can be sent, and end the outage.
func TestTopicWhoseHeldEventsAllWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.paused["paused"] = 1
	n := w.start()
	w.run(2 * time.Second)
	for i := range 10 {
		w.write("paused", fmt.Sprint("k", i), 0)
		w.write("a", fmt.Sprint("k", i), 0)
	}
	other := w.write("a", "other", 1)
	w.topic("a").down = true
	w.run(2 * time.Second)
	require.True(t, n.core.topics["a"].Waits())
	n.core.end(n.core.shards[1]) // and another relay sends its events
	w.delete(1, other.Identity())
	w.topic("a").down = false
	for i := range 20 {
		w.write("a", fmt.Sprint("new", i), 0)
	}
	w.run(5 * time.Second)
	require.GreaterOrEqual(t, w.topic("a").took, 20, "%s", w)
}
