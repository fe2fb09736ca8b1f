package lane

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// script runs a lane by commands that read as a story. Records are named by their offset; the clock stands still
// until a command moves it.
type script struct {
	*testing.T
	lane     *Lane
	now      time.Time
	entries  map[int64]*Entry
	released []int64
}

func newScript(t *testing.T, ordered bool, bound int) *script {
	return &script{T: t, lane: New(ordered, bound), now: time.Unix(0, 0), entries: map[int64]*Entry{}}
}

func (s *script) push(offset int64, key string) { s.pushIdentity(offset, key, "id") }

func (s *script) pushIdentity(offset int64, key, identity string) {
	e := &Entry{Offset: offset, Key: key, Bytes: 10, Identity: identity}
	s.record(s.lane.Push(e))
}

func (s *script) record(released []*Entry) {
	for _, e := range released {
		s.released = append(s.released, e.Offset)
	}
}

// takes requires that exactly these are delivered now, in this order.
func (s *script) takes(offsets ...int64) {
	s.Helper()
	var got []int64
	for e := s.lane.Take(s.now); e != nil; e = s.lane.Take(s.now) {
		s.entries[e.Offset] = e
		got = append(got, e.Offset)
	}
	require.Equal(s, offsets, got)
}

func (s *script) done(offset int64)  { s.record(s.lane.Done(s.entries[offset])) }
func (s *script) handled(offs int64) { s.lane.Handled(s.entries[offs]) }

func (s *script) retry(offset int64, after time.Duration) {
	s.lane.Retry(s.entries[offset], s.now.Add(after))
}

func (s *script) hasReleased(offsets ...int64) {
	s.Helper()
	require.Equal(s, offsets, s.released)
}

const wide = 100

func TestLaneReleasesWithoutAGap(t *testing.T) {
	s := newScript(t, false, wide)
	for _, offset := range []int64{3, 4, 7, 8} { // Kafka's offsets have gaps, of compaction and transactions
		s.push(offset, "k")
	}
	s.takes(3, 4, 7, 8)
	s.done(4)
	s.done(8)
	s.hasReleased()
	s.done(3)
	s.hasReleased(3, 4)
	s.retry(7, time.Second)
	s.takes()
	s.now = s.now.Add(time.Second)
	s.takes(7)
	require.Equal(t, 2, s.entries[7].Attempts)
	s.done(7)
	s.hasReleased(3, 4, 7, 8)
	require.Zero(t, s.lane.Bytes())
}

func TestLaneKeepsTheOrderOfAKey(t *testing.T) {
	s := newScript(t, true, wide)
	for offset, key := range []string{"a", "a", "b", "", "a", ""} {
		s.push(int64(offset), key)
	}
	s.takes(0, 2, 3, 5)
	s.retry(0, time.Minute)
	s.done(2)
	s.takes() // the rest of a waits for its first
	s.push(6, "b")
	s.takes(6) // and nobody else does
	s.now = s.now.Add(time.Minute)
	s.takes(0)
	s.done(0)
	s.takes(1)
	s.handled(1) // the ack follows
	s.handled(1)
	s.takes(4)
	s.hasReleased(0)
	s.done(4)
	s.done(1)
	s.push(7, "a")
	s.takes(7)
	require.Len(t, s.lane.keys, 2, "a and b have each one under way")
}

func TestLaneTakesBackWhatNobodySaw(t *testing.T) {
	s := newScript(t, false, wide)
	s.push(1, "")
	s.push(2, "")
	e := s.lane.Take(s.now)
	s.lane.PutBack(e)
	s.takes(1, 2)
	require.Equal(t, 1, s.entries[1].Attempts)
}

func TestLaneIsFull(t *testing.T) {
	s := newScript(t, false, 4)
	for offset := range int64(3) {
		s.push(offset, "")
	}
	require.False(t, s.lane.Full())
	s.push(3, "")
	require.True(t, s.lane.Full())
	s.push(4, "") // was on its way
	s.takes(0, 1, 2, 3, 4)
	s.done(0)
	s.done(1)
	require.True(t, s.lane.Full(), "until half of the room is free")
	s.done(2)
	require.False(t, s.lane.Full())
	s.push(5, "")
	require.False(t, s.lane.Full())
}

// What handlers have when a partition is taken away and comes back is neither delivered nor committed twice.
func TestLaneOfALaterAssignment(t *testing.T) {
	s := newScript(t, true, wide)
	for offset := range int64(8) {
		s.push(offset, fmt.Sprint("k", offset%7))
	}
	s.takes(0, 1, 2, 3, 4, 5, 6)
	s.done(0)
	s.done(2)
	s.retry(3, time.Minute)
	s.retry(5, time.Minute)
	s.hasReleased(0)
	s.lane.Suspend()
	s.done(1)
	s.retry(6, time.Second)

	s.released = nil
	s.lane.Resume(1)
	for offset := int64(1); offset < 8; offset++ {
		identity := "id"
		if offset == 5 {
			identity = "another" // the topic was made anew
		}
		s.pushIdentity(offset, fmt.Sprint("k", offset%7), identity)
	}
	s.hasReleased(1, 2)
	s.takes(5, 7) // 4 is still under way
	require.Equal(t, 1, s.entries[5].Attempts)
	require.Equal(t, 1, s.lane.taken-2)
	s.now = s.now.Add(time.Minute)
	s.takes(6, 3)
	require.Equal(t, 2, s.entries[3].Attempts)
	for offset := int64(3); offset < 8; offset++ {
		s.done(offset)
	}
	s.hasReleased(1, 2, 3, 4, 5, 6, 7)
	require.Zero(t, s.lane.taken)
}

// TestLaneForgetsWhatOthersHaveDone: what is below the group's offset never comes again.
func TestLaneForgetsWhatOthersHaveDone(t *testing.T) {
	s := newScript(t, false, wide)
	s.push(1, "")
	s.push(2, "")
	s.takes(1, 2)
	s.lane.Suspend()
	s.lane.Resume(2)
	require.Len(t, s.lane.carried, 1)
	s.done(1)
	s.hasReleased()
}

// What was let pass by Delivery.Handled and nacked afterwards is back in its place after a new assignment; what had passed it is
// under way and stays so.
func TestLaneOrderOfALaterAssignment(t *testing.T) {
	s := newScript(t, true, wide)
	for offset := range int64(4) {
		s.push(offset, "k")
	}
	s.takes(0)
	s.handled(0)
	s.takes(1)
	s.retry(0, time.Second)
	s.lane.Suspend()
	require.Len(t, s.lane.carried, 2, "not what no handler has seen")

	s.lane.Resume(0)
	for offset := range int64(4) {
		s.push(offset, "k")
	}
	s.takes()
	s.done(1)
	s.takes()
	s.now = s.now.Add(time.Second)
	s.takes(0)
	s.done(0)
	s.hasReleased(0, 1)
	s.takes(2)
	s.lane.Suspend()
	s.lane.Resume(2)
	s.handled(2)
	s.push(2, "k")
	s.push(3, "k")
	s.takes(3)
}

// A handler that is done with a message of an earlier assignment does not move on what is of this one.
func TestLaneOfAnEarlierAssignmentMovesNothing(t *testing.T) {
	s := newScript(t, true, wide)
	s.push(0, "k")
	s.push(1, "k")
	s.takes(0)
	s.lane.Suspend()
	s.lane.Resume(1) // another member has done it
	s.push(1, "k")
	s.push(2, "k")
	s.takes(1)
	s.handled(0)
	s.done(0)
	s.takes()
	s.hasReleased()
	s.done(1)
	s.takes(2)
}

// TestLaneTellsForeignRecordsByTime: records of other producers have no identity. What is known of one is not said of the record at its
// offset in a topic that was made anew.
func TestLaneTellsForeignRecordsByTime(t *testing.T) {
	l, now := New(false, wide), time.Now()
	old := &Entry{Offset: 1, At: now}
	require.Empty(t, l.Push(old))
	require.Same(t, old, l.Take(now))
	l.Suspend()
	require.Empty(t, l.Done(old))
	l.Resume(-2)
	anew := &Entry{Offset: 1, At: now.Add(time.Millisecond)}
	require.Empty(t, l.Push(anew))
	require.Same(t, anew, l.Take(now))
}
