package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// cut drops what the relay has begun and is of the same type, answers it with an error, and returns it.
func cut[A step.Action](t *testing.T, n *node) A {
	t.Helper()
	for range 200 {
		for _, p := range slices.Clone(n.pending) {
			if a, ok := p.action.(A); ok {
				p.answer = lost(p.action, p.began)
				n.answer(p)
				return a
			}
			n.carryOut(p)
			n.answer(p)
		}
		n.world.pass(100 * time.Millisecond)
	}
	var a A
	require.Failf(t, "not begun", "%T:\n%s", a, n.world)
	return a
}

// Where the statements of the relay's role may take two seconds, the delete of many large events that go to the archive took longer,
// and so did each repetition: the events stayed, and were published again by the next relay.
func TestDeleteThatFailedIsHalved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	for i := range 20 {
		w.write("a", fmt.Sprint("k", i), 0)
	}
	n := w.start()
	n.core.saveLimit = 8
	for _, want := range []int{8, 4, 2, 1, 1} {
		assert.LessOrEqual(t, len(cut[step.Delete](t, n).Rows), want)
	}
	w.run(10 * time.Second)
	require.Empty(t, w.rows)
	assert.Greater(t, n.core.saveLimit, 1, "it grows again")
}

// So did the fetch of large failed events over a slow network.
func TestFetchThatFailedIsHalved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.hasFailed("a", "k", "once")
	n := w.start()
	for _, want := range []int{fetchBytes, fetchBytes / 2, fetchBytes / 4} {
		assert.Equal(t, want, cut[step.FetchFailed](t, n).Bytes)
	}
	w.run(10 * time.Second)
	require.Empty(t, w.failed)
	assert.Greater(t, n.core.order[0].fetchBytes, fetchBytes/8, "it grows again")
}
