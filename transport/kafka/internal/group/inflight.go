package group

import (
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/lane"
)

const (
	// patience is for how long a partition consumer waits itself for the oldest of its deliveries. What takes longer gets a
	// goroutine for the rest, and the acks that came behind it meanwhile are seen. While the next ones take long too, twice as
	// many get one each time. A goroutine for each delivery would cost more than the rest of it, and hundreds of them that are
	// ready to run keep the answers of the brokers waiting.
	patience = time.Millisecond
	// turn is how many records a partition consumer reads, and how many it delivers, before it looks for other things.
	turn = 50
)

// inFlight is what a partition consumer has delivered and waits for. It belongs to one goroutine.
type inFlight struct {
	partition *partitionConsumer
	delivered []*delivery // the oldest first
	head      *delivery   // the oldest, since then
	since     time.Time
	slow      int // how many have got goroutines in a row
}

// outlook is what there is to deliver of a partition.
type outlook struct {
	starved bool      // something is ready, but there is no slot
	due     time.Time // when something is, else; the zero time: unknown
	full    bool      // no more should be read
	heavy   bool      // and it is full of bytes
}

// start delivers what is ready, as far as there are slots. The caller gives away the slot that it has.
func (w *inFlight) start(now time.Time, slot bool) (o outlook) {
	p := w.partition
	p.sending.RLock()
	defer p.sending.RUnlock()
	var entries []*lane.Entry
	p.mu.Lock()
	o.full = p.txn != nil && p.txn.Full()
	for !o.full && !p.stopped() {
		if o.starved, o.due = p.ready(now); !o.starved || len(entries) == turn || !slot && !p.slot() {
			break
		}
		slot = true
		e := p.take(now)
		if e == nil {
			o.starved = false
			break
		}
		slot = false
		entries = append(entries, e)
	}
	o.full = o.full || p.lane.Full()
	o.heavy = p.lane.Heavy()
	p.mu.Unlock()
	if slot {
		<-p.slots
	}
	for _, e := range entries {
		d := p.newDelivery(e)
		p.running.Add(1)
		w.delivered = append(w.delivered, d)
		d.number = p.sent.Add(1)
		p.out <- d.message // there is room for one message of each slot
	}
	return o
}

// queued tells whether the message probably lies in out.
func (s *Subscription) queued(d *delivery) bool { return d.number > s.sent.Load()-int64(len(s.out)) }

// slot takes a slot if one is free.
func (s *Subscription) slot() bool {
	select {
	case s.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// collect settles deliveries that have ended, and lets go of the others when the oldest takes long.
func (w *inFlight) collect(now time.Time) {
	head := w.head
	late := head != nil && now.Sub(w.since) >= patience
	var ended []ending
	w.delivered = slices.DeleteFunc(w.delivered, func(d *delivery) bool {
		o, ok := d.ended()
		if ok {
			ended = append(ended, ending{d, o})
		}
		return ok
	})
	switch {
	case head != w.oldest():
		w.slow = 0
	case late:
		w.letGo(w.slow + 1)
	}
	w.partition.settle(ended)
}

// oldest is the oldest delivery, or nil.
func (w *inFlight) oldest() *delivery {
	if len(w.delivered) == 0 {
		return nil
	}
	return w.delivered[0]
}

// due is when to look whether the oldest takes long, or the zero time. It does not while no handler has got it.
func (w *inFlight) due(now time.Time) time.Time {
	oldest := w.oldest()
	if oldest != w.head || oldest != nil && w.partition.queued(oldest) {
		w.head, w.since = oldest, now
	}
	if w.head == nil {
		return time.Time{}
	}
	return w.since.Add(patience)
}

// next is the message whose end is waited for, or nil: the oldest, or a later one while messages wait for handlers, because
// a turn for each ack has its price, and nobody needs it then.
func (w *inFlight) next() *message.Message {
	if len(w.delivered) == 0 {
		return nil
	}
	got, _ := slices.BinarySearchFunc(w.delivered, true, func(d *delivery, _ bool) int {
		if w.partition.queued(d) {
			return 1
		}
		return -1
	})
	return w.delivered[(len(w.delivered)-got)/2].message
}

// letGo gives the n oldest deliveries goroutines.
func (w *inFlight) letGo(n int) {
	n = min(n, len(w.delivered))
	for _, d := range w.delivered[:n] {
		go func() {
			w.partition.settle([]ending{{d, d.await()}})
			w.partition.Wake()
		}()
	}
	w.delivered, w.head = slices.Delete(w.delivered, 0, n), nil
	w.slow += n
}

// shut ends the deliveries of the claim. What no handler has got goes back to the lane.
func (w *inFlight) shut() {
	w.partition.sending.Lock()
	w.partition.takeBack(func(of *partitionConsumer) bool { return of == w.partition })
	w.partition.sending.Unlock()
	w.partition.putBackSolo()
	w.letGo(len(w.delivered))
}

// finish closes out, and takes back what is there and no handler has got.
func (s *Subscription) finish() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.takeBack(func(*partitionConsumer) bool { return true })
	close(s.out)
}

// takeBack takes messages out of out. The caller holds sending, so there is room to put the others back.
func (s *Subscription) takeBack(whose func(*partitionConsumer) bool) {
	for range len(s.out) {
		select {
		case msg := <-s.out:
			if d := transport.DeliveryFrom(msg.Context()).(*delivery); whose(d.partition) {
				d.takeBack()
			} else {
				s.out <- msg
			}
		default:
			return // handlers have got the rest
		}
	}
}

// takeBack undoes a delivery that no handler has got.
func (d *delivery) takeBack() {
	d.partition.mu.Lock()
	d.over = true
	d.partition.lane.PutBack(d.entry)
	d.partition.mu.Unlock()
	d.withdrawn = true
	d.message.Nack()
}
