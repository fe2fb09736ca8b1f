package relay

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// A part of a topic is out of reach, which a publisher reports by an error of unknown meaning. Some of its events are dead
// before it is over. They are published without an operator when others that failed with the same error are.
func TestDeadEventsAreRetriedAfterAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	topic := w.topic("a")
	partition := errors.New("the partition has no leader")
	w.start()
	w.start()
	fail := func(topic string, err error, key string) *worldRow {
		e := w.write(topic, key, int16(len(key))%4)
		w.topic(topic).refuse[e.EventID] = err
		return e
	}
	inReach := func(d time.Duration) {
		for i := range int(d / (100 * time.Millisecond)) {
			w.write("a", fmt.Sprint("well", i%4), int16(i%4))
			w.write("b", fmt.Sprint("good", i%4), int16(i%4))
			w.run(100 * time.Millisecond)
		}
	}
	var lost []*worldRow
	for _, key := range []string{"k", "kk", "kkk", "kkkk"} {
		lost = append(lost, fail("a", partition, key), w.write("a", key, int16(len(key))%4))
	}
	odd, rejected, elsewhere := fail("a", errOdd, "l"), fail("a", errRefuse, "m"), fail("b", partition, "n")
	inReach(20 * time.Second)
	states := func() (states []string) {
		for _, f := range w.failed {
			states = append(states, f.EventID+" "+f.state)
		}
		slices.Sort(states)
		return states
	}
	var want []string
	for i, e := range lost {
		want = append(want, e.EventID+" "+[]string{step.Dead, step.Blocked}[i%2])
	}
	staying := []string{odd.EventID + " dead", rejected.EventID + " dead", elsewhere.EventID + " dead"}
	want = append(want, staying...)
	slices.Sort(want)
	require.Equal(t, want, states())

	late := fail("a", partition, "kkkkk")
	inReach(time.Second)
	for _, e := range append(lost, late) {
		delete(topic.refuse, e.EventID)
	}
	still := fail("a", partition, "kkkkkk") // an error of its own, as it turns out
	inReach(90 * time.Second)
	staying = append(staying, still.EventID+" dead")
	slices.Sort(staying)
	require.Equal(t, staying, states(), "%s", w)
	for _, e := range lost {
		assert.Equal(t, 1, w.published[e.EventID], e.EventID)
	}
	require.Empty(t, w.overtaken)

	// An event that fails with an error that others recover from is tried again, but not over and over.
	sends := w.sent[still.EventID]
	for range 10 {
		e := fail("a", partition, "kkkkk")
		inReach(3 * time.Second)
		delete(topic.refuse, e.EventID)
		inReach(3 * time.Second)
	}
	assert.Contains(t, states(), still.EventID+" dead")
	assert.LessOrEqual(t, w.sent[still.EventID]-sends, 8, "two attempts a minute, in either relay")
}
