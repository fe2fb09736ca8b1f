package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/crashguard"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// hasFailed commits an event that is among the failed ones, and due.
func (w *world) hasFailed(topic, key string, reason string) *worldRow {
	r := w.write(topic, key, 0)
	w.delete(0, r.Identity())
	w.lastID++
	w.failed = append(w.failed, &worldFailed{worldRow: r, id: w.lastID, state: step.Retrying, reason: reason, at: w.now})
	return r
}

// As many failed events of a slow topic as are fetched at once kept those of other topics waiting until they were sent.
func TestFailedEventsOfASlowTopicStopNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.topic("slow").takes = 20 * time.Second
	for i := range 2 * maxHeads {
		w.hasFailed("slow", fmt.Sprint("s", i), "once")
	}
	w.hasFailed("well", "k", "once")
	w.start()
	w.run(10 * time.Second)
	require.Equal(t, 1, w.topic("well").took, "%s", w)
	w.topic("slow").takes = 0
	w.run(time.Minute)
	assert.Empty(t, w.failed)
}

// While a relay sends an event that relays ended over, it notes no other event: the result of a third one once let it.
func TestNoteStaysWhileItsEventIsSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.topic("first").takes = 20 * time.Second
	suspect := w.hasFailed("first", "a", step.ReasonCrash)
	w.hasFailed("plain", "b", "once")
	w.hasFailed("other", "c", step.ReasonCrash)
	w.topic("plain").takes = 100 * time.Millisecond
	w.start()
	w.run(10 * time.Second)
	require.Equal(t, 1, w.topic("plain").took)
	assert.Equal(t, suspect.EventID, w.leases[0].noted, "%s", w)
	w.run(20 * time.Second)
	assert.Empty(t, w.failed)
}

// What relays ended over stays recorded until its event has moved, whatever else moves before.
func TestAccusationStaysUntilItsEventIsMoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	n := w.start()
	w.run(time.Second)
	s := n.core.order[0]
	moved := func(reason string) {
		e := &step.Event{Row: w.write("a", reason, 0).Row, InQueue: s.queue("a")}
		s.setting = []step.Aside{{Event: e, State: step.Retrying, Reason: reason}}
		n.core.Apply(w.now, step.WasSetAside{Ref: s.Ref, Leased: true, Moved: 1})
	}
	settled := func(reason string) {
		s.settles = append(s.settles, settlement{SettleFailed: step.SettleFailed{Ref: s.Ref, Again: []step.Again{{Reason: reason}}}, queue: s.queue("a")})
		n.core.Apply(w.now, step.FailedSettled{Ref: s.Ref})
	}
	for _, move := range []func(string){moved, settled} {
		s.guard = crashguard.New(step.Lease{Deaths: 3}, 1)
		move("refused")
		assert.Equal(t, 3, s.guard.Deaths())
		move(step.ReasonCrash)
		assert.Zero(t, s.guard.Deaths())
	}
}

// An operator discards an event that is being sent. The next event of its key, of another topic, once was sent beside it.
func TestNextEventWaitsForADiscardedOneThatIsSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	first := w.hasFailed("a", "k", "once")
	w.hasFailed("b", "k", "")
	w.failed[1].state = step.Blocked
	w.topic("a").takes = 5 * time.Second
	w.start()
	w.run(2 * time.Second)
	require.Equal(t, 1, w.published[first.EventID])
	w.failed[0].command = "discard"
	w.run(2 * time.Second)
	assert.Zero(t, w.topic("b").took, "%s", w)
	w.run(3 * time.Second)
	assert.Equal(t, 1, w.topic("b").took, "%s", w)
	assert.Empty(t, w.failed)
}

// The database executes a move to the failed events when the relay has lost its lease and taken the shard again. The next event of the
// key once was published, and the moved one after it.
func TestLateMoveOfAnEarlierLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	first := w.write("a", "k", 0)
	w.topic("a").refuse[first.EventID] = errRefuse
	n := w.start()
	var late *pending
	for late == nil {
		for _, p := range slices.Clone(n.pending) {
			if _, ok := p.action.(step.SetAside); ok {
				late = p
			} else if n.carryOut(p) {
				n.answer(p)
			}
		}
		w.pass(time.Millisecond)
	}
	n.pending = slices.DeleteFunc(n.pending, func(p *pending) bool { return p == late })
	for len(n.core.Held()) > 0 { // the database does not answer
		for _, p := range slices.Clone(n.pending) {
			p.answer = lost(p.action, p.began)
			n.answer(p)
		}
		w.pass(time.Second)
	}
	clear(w.topic("a").refuse)
	w.write("a", "k", 0)
	for len(n.core.Held()) == 0 || !n.core.order[0].loaded { // it has asked for the keys that have failed events
		for _, p := range slices.Clone(n.pending) {
			if _, ok := p.action.(step.Read); !ok && n.carryOut(p) {
				n.answer(p)
			}
		}
		w.pass(time.Millisecond)
	}
	require.True(t, n.carryOut(late))
	w.run(time.Minute)
	require.Empty(t, w.overtaken)
	require.Len(t, w.published, 2, "%s", w)
	require.Empty(t, w.rows, "%s", w)
}

// An operator discarded an event of a paused topic while its move to the failed events was repeated. The next event of its key moved there
// without it, and stayed blocked although nothing was before it.
func TestEventWhoseFirstOneWasDiscardedBeforeTheirMove(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.hasFailed("a", "other", "once")
	n := w.start()
	w.run(5 * time.Second)
	require.Empty(t, w.failed) // the first fetch of a lease looks at every key
	first := w.write("a", "k", 0)
	w.topic("a").refuse[first.EventID] = errRefuse
	next := w.write("b", "k", 0)
	for len(w.discarded) == 0 {
		for _, p := range slices.Clone(n.pending) {
			if a, ok := p.action.(step.SetAside); ok { // the database does not take it
				require.Len(t, a.Events, 2)
				p.answer = lost(a, p.began)
				w.paused["a"] = 1
			} else {
				require.True(t, n.carryOut(p))
			}
			n.answer(p)
			n.core.order[0].asideLimit = maxAside // both are moved at once again
		}
		w.discard("a", 1)
		w.pass(100 * time.Millisecond)
	}
	w.run(10 * time.Second)
	delete(w.paused, "a")
	w.run(10 * time.Second)
	assert.Equal(t, 1, w.published[next.EventID], "%s", w)
	assert.Empty(t, w.failed)
	assert.Empty(t, n.core.order[0].blocked)
}

// An operator discards the second failed event of a key while the result of the first one is recorded. The relay learned that the key has
// no failed event left, then that it still had one: it set every later event of the key aside, as blocked.
func TestKeyIsFreeWhateverAnswerComesFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.hasFailed("a", "k", "once")
	w.hasFailed("b", "k", "")
	w.failed[1].state = step.Blocked
	n := w.start()
	var settle, fetch *pending
	for settle == nil || fetch == nil {
		for _, p := range slices.Clone(n.pending) {
			switch p.action.(type) {
			case step.SettleFailed:
				settle, w.failed[1].command = p, "discard"
				continue
			case step.FetchFailed:
				if settle != nil {
					fetch = p
					continue
				}
			}
			require.True(t, n.carryOut(p))
			n.answer(p)
		}
		w.pass(100 * time.Millisecond)
	}
	require.True(t, n.carryOut(settle))
	require.True(t, n.carryOut(fetch))
	n.answer(fetch)
	n.answer(settle)
	later := w.write("a", "k", 0)
	w.run(10 * time.Second)
	assert.Equal(t, 1, w.published[later.EventID], "%s", w)
	assert.Empty(t, w.failed)
	assert.Empty(t, n.core.order[0].blocked)
}

// A move of a thousand large events locked the row of the shard's lease for so long that the relay lost all its leases.
func TestMoveToTheFailedEventsIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	n := w.start()
	w.run(time.Second)
	s := n.core.order[0]
	for _, size := range []int{batchBytes + 1, batchBytes / 2, batchBytes / 2, 1} {
		s.aside = append(s.aside, step.Aside{Event: &step.Event{Row: step.Row{Size: size}}})
	}
	for _, events := range []int{1, 2, 1} {
		n.core.setAside(s)
		assert.Len(t, s.setting, events)
	}
	assert.Empty(t, s.aside)
}
