package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// A read that looked for a payload moved the end of the scan forward, to that event's number. The relay did not look for the numbers
// between any more, and published a later event of a key before one of them.
func TestPayloadMovesNoScanForward(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.config = func(c *Config) { c.BatchSize, c.MaxInFlight = 2, 8 }
	w.rules = func(r *rules) { r.quota = func(*Core) int { return 3 } }
	w.paused["a"] = 1
	for i := range 100 { // more than a read of the scan returns
		w.write("a", fmt.Sprint("a", i), 0)
	}
	w.topic("b").down = true
	n := w.start()
	w.run(time.Second)
	open := w.begin("b", "k", 0)
	w.write("b", "b", 0)
	n.core.Apply(w.now, step.Woken{All: true})
	w.run(3 * time.Second)
	s := n.core.order[0]
	require.Len(t, s.queues["b"].ready, 1)
	require.Equal(t, []int64{open.row.Seq}, s.gaps.List())

	n.unread = func(*node, *pending) {} // until the transaction has ended
	s.woken = true
	n.next()
	w.run(time.Second)
	w.end(open, true)
	w.write("b", "k", 0)
	w.topic("b").down = false
	n.unread = func(n *node, p *pending) {
		n.unread = nil
		p.answer = lost(p.action, p.began)
		n.answer(p)
	}
	w.run(10 * time.Second)
	require.Empty(t, w.overtaken, "%s", w)
	require.Equal(t, 3, w.topic("b").took, "%s", w)
}

// A rescan or another server makes the relay reset its memory while a read is under way. What that read returns lies above a row that the
// relay has not read, and it published a later event of a key before that row.
func TestReadFromBeforeTheMemoryWasResetCountsForNothing(t *testing.T) {
	t.Parallel()
	for name, reset := range map[string]func(*node){
		"by a rescan":       func(n *node) { n.core.order[0].gaps.Forget(0) },
		"by another server": func(n *node) { n.moved = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			for i := range 10 {
				w.write("a", fmt.Sprint("other", i), 0)
			}
			n := w.start()
			w.run(time.Second)
			require.Empty(t, w.rows)
			w.sequences[0] = 4
			w.write("a", "k", 0)
			w.sequences[0] = 10
			w.write("a", "k", 0)
			n.unread = func(n *node, p *pending) {
				n.unread = nil
				reset(n)
				n.carryOut(p)
				n.answer(p)
			}
			n.core.Apply(w.now, step.Woken{All: true})
			n.next()
			w.run(time.Second)
			require.Nil(t, n.unread)
			assert.Empty(t, w.overtaken)
			assert.Empty(t, w.rows, "%s", w)
		})
	}
}

// A failover lost rows, and the new server gave their numbers to others. A lost event whose payload was wanted stayed at the head of its
// topic queue, because a row with its number was there; and that row was published before an earlier one of its key.
func TestNumbersOfLostRowsAreUsedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.write("a", "published", 0)
	w.write("a", "published", 0)
	n := w.start()
	w.run(time.Second)
	w.topic("a").down = true
	w.write("a", "lost", 0)
	w.run(3 * time.Second)
	s := n.core.order[0]
	w.rows, w.sequences[0] = nil, 0
	for range 4 {
		w.write("a", "k", 0)
	}
	n.moved = true
	w.topic("a").down = false
	lost := w.now
	n.unread = func(n *node, p *pending) { // until the topic is probed, which needs the lost event's payload
		if w.now.Sub(lost) > 2*time.Second {
			n.unread = nil
			n.carryOut(p)
			n.answer(p)
		}
	}
	n.core.Apply(w.now, step.Woken{All: true})
	n.next()
	w.run(5 * time.Second)
	require.Empty(t, w.rows, "%s", w)
	require.Empty(t, w.overtaken)
	require.Zero(t, s.bare)
	require.Empty(t, s.held)
}
