package transport

import (
	"container/heap"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// memoryQueue decides which message of one consumer group is delivered next. Its result depends only on the calls and the times
// passed to them: it has no lock, no clock and no goroutine. The caller must serialize calls.
//
// Every message in the queue is in exactly one place: ready, delayed, in flight (taken), or in its key's lane, where it waits for
// an earlier message of the key that is ready, delayed or in flight.
type memoryQueue struct {
	ordered bool
	ready   []*memoryItem
	delayed memoryDelays
	lanes   map[string][]*memoryItem // key -> messages that wait for the first message of the key; a key is present while it has a first message
}

// memoryItem is one message of one consumer group.
type memoryItem struct {
	msg      *message.Message
	key      string
	attempts int // number of deliveries
	due      time.Time
}

func newMemoryQueue(ordered bool) *memoryQueue {
	return &memoryQueue{ordered: ordered, lanes: map[string][]*memoryItem{}}
}

// push adds a message after all others of its key.
func (q *memoryQueue) push(item *memoryItem) {
	if q.laned(item) {
		if behind, busy := q.lanes[item.key]; busy {
			q.lanes[item.key] = append(behind, item)
			return
		}
		q.lanes[item.key] = nil
	}
	q.ready = append(q.ready, item)
}

// take removes the next message that may be delivered at now, and counts the attempt. If there is none, it returns nil and the
// time at which the next delayed message becomes due, or the zero time.
func (q *memoryQueue) take(now time.Time) (*memoryItem, time.Time) {
	for len(q.delayed) > 0 && !q.delayed[0].due.After(now) {
		q.ready = append(q.ready, heap.Pop(&q.delayed).(*memoryItem))
	}
	if len(q.ready) == 0 {
		if len(q.delayed) == 0 {
			return nil, time.Time{}
		}
		return nil, q.delayed[0].due
	}
	item := q.ready[0]
	q.ready[0] = nil
	q.ready = q.ready[1:]
	item.attempts++
	return item, time.Time{}
}

// done removes a taken message; the next message of its key becomes ready.
func (q *memoryQueue) done(item *memoryItem) {
	if !q.laned(item) {
		return
	}
	behind := q.lanes[item.key]
	if len(behind) == 0 {
		delete(q.lanes, item.key)
		return
	}
	q.ready = append(q.ready, behind[0])
	behind[0] = nil
	q.lanes[item.key] = behind[1:]
}

// retry schedules a taken message for redelivery at due. The later messages of its key wait for it.
func (q *memoryQueue) retry(item *memoryItem, due time.Time) {
	item.due = due
	heap.Push(&q.delayed, item)
}

// putBack returns a taken message that was not delivered to the front of the queue, and does not count the attempt.
func (q *memoryQueue) putBack(item *memoryItem) {
	item.attempts--
	q.ready = append([]*memoryItem{item}, q.ready...)
}

func (q *memoryQueue) laned(item *memoryItem) bool { return q.ordered && item.key != "" }

// memoryDelays is a heap of messages ordered by the time at which they are due.
type memoryDelays []*memoryItem

func (d memoryDelays) Len() int           { return len(d) }
func (d memoryDelays) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d memoryDelays) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *memoryDelays) Push(x any)        { *d = append(*d, x.(*memoryItem)) }

func (d *memoryDelays) Pop() any {
	last := len(*d) - 1
	item := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return item
}
