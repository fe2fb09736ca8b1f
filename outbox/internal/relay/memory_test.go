package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/topic"
)

// Payloads of a topic that stands, a few megabytes in each of many shards, took up all that a relay holds: it read nothing more.
func TestDeadTopicInManyShardsLeavesMemory(t *testing.T) {
	t.Parallel()
	const shards = 40
	w := newWorld(t, shards)
	w.topic("dead").down = true
	large := make([]byte, 190<<10)
	for s := range int16(shards) {
		for i := range 40 {
			r := w.write("dead", fmt.Sprint("d", s, i), s)
			r.Payload, r.Size = large, len(large)
		}
	}
	n := w.start()
	w.run(20 * time.Second)
	for s := range int16(shards) {
		w.write("well", fmt.Sprint("k", s), s)
	}
	w.run(10 * time.Second)
	require.Equal(t, shards, w.topic("well").took, "%d bytes are held", n.core.weight(w.now))
	assert.Less(t, n.core.weight(w.now), maxBytes)
	w.topic("dead").down = false
	w.run(time.Minute)
	require.Empty(t, w.rows)
}

// A topic that does not get on is asked with few events. No more payloads are read for that.
func TestProbeReadsFewPayloads(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.config = func(c *Config) { c.BatchSize, c.MaxInFlight = 100, 400 }
	w.topic("dead").down = true
	for i := range 200 {
		w.write("dead", fmt.Sprint("d", i), 0)
	}
	n := w.start()
	w.run(10 * time.Second)
	s := n.core.order[0]
	q := s.queues["dead"]
	for _, e := range q.ready {
		s.unload(e) // as when there is no room
	}
	require.Equal(t, 3, q.window)
	require.True(t, q.stuck(w.now))
	assert.Len(t, s.missing(q.topic.Next()), q.window)
}

// A service that has a topic for each of its customers does not fill the relay's memory.
func TestTopicsAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	n := w.start()
	for i := range 3 * topic.MaxIdle {
		w.write(fmt.Sprint("topic ", i), "", 0)
	}
	w.run(time.Minute)
	require.Empty(t, w.rows)
	assert.LessOrEqual(t, len(n.core.topics), topic.MaxIdle)
}

// A shard whose publisher does not return is given back, and only what is in flight stays in memory.
func TestEndedShardHoldsNoPayloads(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.topic("stuck").wedged = true
	for i := range 40 {
		w.write("stuck", fmt.Sprint("k", i), 0)
	}
	n := w.start()
	w.run(2 * time.Second)
	s := n.core.order[0]
	require.Greater(t, s.bytes, len(s.queues["stuck"].sending))
	n.core.end(s)
	assert.Equal(t, len(s.queues["stuck"].sending), s.bytes, "each has one byte")
	require.Len(t, n.core.ended, 1)
}
