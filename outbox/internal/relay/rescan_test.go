package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// A rescan walks the deferred rows of a dead topic. In all shards at once it took as much of the server as a quarter of the reads of a
// backlog. Each covers one such shard, and none follows for 20 times as long. No shard is left out.
func TestRescansOfDeferredRowsAreSpread(t *testing.T) {
	t.Parallel()
	const shards = 4
	w := newWorld(t, shards)
	w.rules = func(r *rules) { r.quota = func(*Core) int { return 30 } }
	w.topic("dead").down = true
	for i := range shards * 100 {
		w.write("dead", fmt.Sprint("d", i), int16(i%shards))
	}
	w.start()
	w.run(4 * time.Second)
	w.rescanTakes = 100 * time.Millisecond
	w.run(time.Minute)
	covered := map[int16]int{}
	for i, r := range w.rescans {
		require.Len(t, r.Requests, 1, "rescan %d", i)
		covered[r.Requests[0].Shard]++
		if i > 0 {
			assert.GreaterOrEqual(t, r.at.Sub(w.rescans[i-1].at), 21*w.rescanTakes)
		}
	}
	for s := range int16(shards) {
		assert.GreaterOrEqual(t, covered[s], 6, "shard %d", s)
	}

	// Without deferred rows one covers all shards.
	w.topic("dead").down = false
	w.run(time.Minute)
	require.Empty(t, w.rows, "%s", w)
	require.Len(t, w.rescans[len(w.rescans)-1].Requests, shards)
}

// A scan may begin above the deferred rows of a topic. They are published although a transaction is open that keeps the scan from ending.
func TestDeferredRowsBelowAScanArePublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.config = func(c *Config) { c.BatchSize, c.MaxInFlight = 2, 4 }
	w.rules = func(r *rules) { r.quota = func(*Core) int { return 3 } }
	w.topic("a").takes = 100 * time.Millisecond
	for i := range 60 {
		w.write("a", fmt.Sprint("k", i%3), 0)
	}
	n := w.start()
	w.run(500 * time.Millisecond)
	require.NotEmpty(t, w.rows)
	open := w.begin("b", "open", 0)
	bulk := w.begin("b", "bulk", 0)
	w.sequences[0] += 10_001 // more gaps than a relay remembers
	w.end(bulk, false)
	w.write("b", "later", 0)
	n.core.Apply(w.now, step.Woken{All: true})
	w.run(time.Minute)
	require.Empty(t, w.rows, "%s", w)
	w.end(open, true)
	w.run(time.Minute)
	require.Empty(t, w.rows, "%s", w)
	require.Empty(t, w.overtaken)
}

// A renewal whose answer is lost may take a shard again that its relay holds. The statements of the former term change nothing, so the
// relay begins anew.
func TestLeaseWithAnotherTermBeginsAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	n := w.start()
	w.run(time.Second)
	require.Len(t, n.core.Held(), 1)
	w.leases[0].term++
	w.run(time.Minute)
	require.Len(t, n.core.Held(), 1)
	require.Equal(t, w.leases[0].term, n.core.order[0].Term)
}
