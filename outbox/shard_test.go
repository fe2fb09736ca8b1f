package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/transport"
)

func rowOf(seq int64, id, topic, key string) row {
	return row{seq: seq, eventID: id, topic: topic, key: key, payload: make([]byte, 1000), size: 1002}
}

// A row that was read again between its publish and its delete was counted as held once more, for ever: such a shard
// stopped reading when that filled its memory.
func TestAcknowledgedEventsAreNotHeldAgain(t *testing.T) {
	t.Parallel()
	s := newShard(t.Context(), 0)
	s.take([]row{rowOf(1, "a", "t", "k")})
	now, l := time.Now(), s.lanes["t"]
	s.next(l, 10, now)
	acked, _ := s.settle(l, []error{nil}, now, now, 10)
	s.take([]row{rowOf(1, "a", "t", "k")})
	s.drop(acked[0])
	assert.Zero(t, s.bytes)
	assert.Zero(t, s.bare)
	assert.Empty(t, s.held)
}

// What waited for a lane of another topic was moved before the rest of the lane's own.
func TestKeyOfTwoTopicsIsParkedInOrder(t *testing.T) {
	t.Parallel()
	s := newShard(t.Context(), 0)
	s.take([]row{rowOf(1, "1", "a", "k"), rowOf(2, "2", "a", "k"), rowOf(3, "3", "b", "k"), rowOf(4, "4", "a", "k")})
	now, l := time.Now(), s.lanes["a"]
	assert.Len(t, s.next(l, 10, now), 2)
	s.settle(l, []error{transport.ErrRejected, transport.ErrNotSent}, now, now, 10)
	var ids []string
	for _, p := range s.park {
		ids = append(ids, p.eventID)
	}
	assert.Equal(t, []string{"1", "2", "3", "4"}, ids)
}

// While nothing is known to be on disk, no transaction is: also not those whose IDs have their upper bit set, which are
// "older" than 0.
func TestNothingIsDurableUntilProven(t *testing.T) {
	t.Parallel()
	r := &reader{}
	for _, id := range []uint32{3, 1000, 3_000_000_000} {
		assert.True(t, r.unproven(id), id)
	}
	r.durable = 1<<32 + 500 // in the second epoch
	assert.False(t, r.unproven(499))
	assert.False(t, r.unproven(4_000_000_000))
	assert.True(t, r.unproven(500))
	assert.True(t, r.unproven(501))
}
