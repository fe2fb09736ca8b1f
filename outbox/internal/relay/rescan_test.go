package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
