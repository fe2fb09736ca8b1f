package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/budget"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// A poison message is set aside although events that fail stand before it in its topic: the note of each of them once wiped out
// how many relays had ended over it, and relays ended for ever.
func TestPoisonBehindEventsThatFail(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"with a key": "p", "without a key": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			for _, k := range []string{"f", "g"} {
				w.topic("a").refuse[w.write("a", k, 0).EventID] = errOdd
			}
			poison := w.write("a", key, 0)
			poison.poison = true
			for range 12 {
				w.start()
				w.run(20 * time.Second)
			}
			require.True(t, slices.ContainsFunc(w.failed, func(f *worldFailed) bool { return f.EventID == poison.EventID }), "%s", w)
			require.Len(t, w.failed, 1)
		})
	}
}

// A poison message ends its relay a while after it was sent. Meanwhile events of another topic are published and deleted, which once
// cleared what was recorded of the relay before.
func TestPoisonThatTakesTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.topic("slow").takes = time.Second
	poison := w.write("slow", "p", 0)
	w.endsNoMore(poison, func() { w.write("quick", "q", 0) })
	require.Equal(t, 12, w.topic("quick").took)
}

// The same for one that is among the failed events, with events that are ready beside it.
func TestFailedPoisonThatTakesTime(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"with a key": "p", "without a key": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.topic("slow").takes = time.Second
			w.endsNoMore(w.hasFailed("slow", key, ""), func() { w.write("quick", "q", 0) })
		})
	}
}

// Other events are noted before the poison message is sent: it is among the failed events, which are fetched later than others are read,
// or behind more events of a topic that is out of reach than the first read returns. Their notes once wiped out how many relays had
// ended over it.
func TestPoisonBehindOthersThatAreNoted(t *testing.T) {
	t.Parallel()
	t.Run("a failed event", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 1)
		w.fetchTakes = 100 * time.Millisecond
		w.endsNoMore(w.hasFailed("late", "p", ""), func() {
			for i := range 5 {
				w.write(fmt.Sprint("topic ", i), "q", 0)
			}
		})
	})
	t.Run("far behind", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 1)
		w.topic("dead").down = true
		first := budget.New()
		for i := range 3 * first.Rows(maxAside) { // more than the first read returns
			w.write("dead", fmt.Sprint("d", i), 0)
		}
		w.endsNoMore(w.write("well", "p", 0), func() {})
	})
}

// endsNoMore runs one relay after another and requires that the poison message is set aside, and that nothing else is.
func (w *world) endsNoMore(poison *worldRow, before func()) {
	poison.poison = true
	for range 12 {
		before()
		w.start()
		w.run(20 * time.Second)
	}
	require.True(w.t, slices.ContainsFunc(w.failed, func(f *worldFailed) bool { return f.EventID == poison.EventID && f.reason == step.ReasonCrash }), "%s", w)
	require.Len(w.t, w.failed, 1)
}
