package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A call of the publisher that does not return costs the relay the shard, although its other topics go on.
func TestPublisherThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.topic("stuck").wedged = true
	w.write("stuck", "k", 0)
	first := w.start()
	w.run(time.Second)
	w.topic("stuck").wedged = false // every other call returns
	second := w.start()
	goOn := func(d time.Duration) {
		for end := w.now.Add(d); w.now.Before(end); {
			w.write("well", "other", 0)
			w.run(time.Second)
		}
	}
	goOn(55 * time.Second)
	require.Equal(t, []int16{0}, first.core.Held(), "it has a minute to return")
	goOn(10 * time.Second)
	require.Empty(t, first.core.Held())
	require.Equal(t, []int16{0}, second.core.Held())
	goOn(30 * time.Second)
	assert.Empty(t, w.rows, "%s", w)
	assert.Empty(t, w.overtaken)
}

// A call that asks whether a topic gets on, and does not return, once kept the topic from being asked again.
func TestProbeThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	n := w.start()
	topic := w.topic("a")
	topic.down = true
	for i := range int16(2) {
		w.write("a", fmt.Sprint("k", i), i)
	}
	w.run(5 * time.Second)
	topic.down, topic.wedged = false, true
	w.run(2 * time.Second)
	topic.wedged = false // every other call returns
	for range 120 {
		w.write("b", "other", 0) // the relay does not struggle
		w.write("b", "another", 1)
		w.run(time.Second)
	}
	require.NotEmpty(t, n.pending, "the call has not returned")
	assert.False(t, slices.ContainsFunc(w.rows, func(r *worldRow) bool { return r.Topic == "a" }), "%s", w)
}
