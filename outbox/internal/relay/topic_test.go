package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The events of a paused topic wait, also in relays that start meanwhile. Others go on, and the relay rests. After the resume
// they come in order.
func TestPausedTopicWaits(t *testing.T) {
	t.Parallel()
	const events = 200 // more than a shard holds of a topic
	w := newWorld(t, 2)
	w.rules = func(r *rules) { r.quota = func(*Core) int { return 30 } }
	w.paused["a"] = true
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
	second.core.Apply(w.now, Woken{Look: true})
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
	w.paused["a"] = true
	clear(w.topic("a").refuse)
	clear(w.topic("b").refuse)
	for _, f := range w.failed {
		f.command = "retry"
	}
	n.core.Apply(w.now, Woken{Look: true})
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
	w.paused["a"] = true
	n.core.Apply(w.now, Woken{Look: true})
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

// An event that is deleted while its topic is paused is not sent after the resume, although the relay had read it before.
func TestDeletedWhileItsTopicIsPaused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	topic := w.topic("a")
	topic.takes = time.Second
	for i := range 40 {
		w.write("a", fmt.Sprint("k", i%7), 0)
	}
	n := w.start()
	w.run(100 * time.Millisecond)
	require.NotZero(t, n.core.shards[0].queues["a"].ready)
	w.paused["a"] = true
	n.core.Apply(w.now, Woken{Look: true})
	w.run(5 * time.Second)
	took := topic.took
	require.Less(t, took, 40)
	w.rows = nil
	delete(w.paused, "a")
	w.run(10 * time.Second)
	require.Equal(t, took, topic.took)
	require.Empty(t, w.disobeyed)
	require.Empty(t, n.core.shards[0].keys, "%s", w)
}
