package memory

import (
	"container/heap"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// queue decides which message of one consumer group is delivered next. Its result depends only on the calls and the times
// passed to them: it has no lock, no clock and no goroutine. The caller must serialize calls.
//
// Every message in the queue is in exactly one place: ready, delayed, in flight (taken), or in its key's lane, where it waits for
// an earlier message of the key that is ready, delayed or in flight.
type queue struct {
	ordered bool
	ready   []*queued
	delayed delays
	lanes   map[string][]*queued // key -> messages that wait for the first message of the key; a key is present while it has a first message
}

// queued is one message of one consumer group.
type queued struct {
	msg      *message.Message
	key      string
	attempts int // number of deliveries
	due      time.Time
}

func newQueue(ordered bool) *queue {
	return &queue{ordered: ordered, lanes: map[string][]*queued{}}
}

// push adds a message after all others of its key.
func (q *queue) push(item *queued) {
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
func (q *queue) take(now time.Time) (*queued, time.Time) {
	for len(q.delayed) > 0 && !q.delayed[0].due.After(now) {
		q.ready = append(q.ready, heap.Pop(&q.delayed).(*queued))
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
func (q *queue) done(item *queued) {
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
func (q *queue) retry(item *queued, due time.Time) {
	item.due = due
	heap.Push(&q.delayed, item)
}

// putBack returns a taken message that was not delivered to the front of the queue, and does not count the attempt.
func (q *queue) putBack(item *queued) {
	item.attempts--
	q.ready = append([]*queued{item}, q.ready...)
}

func (q *queue) laned(item *queued) bool { return q.ordered && item.key != "" }

// delays is a heap of messages ordered by the time at which they are due.
type delays []*queued

func (d delays) Len() int           { return len(d) }
func (d delays) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d delays) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *delays) Push(x any)        { *d = append(*d, x.(*queued)) }

func (d *delays) Pop() any {
	last := len(*d) - 1
	item := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return item
}
