package kafka

import (
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

const (
	// patience is for how long an intake waits itself for the oldest of its deliveries. What takes longer gets a goroutine
	// for the rest, and the acks that came behind it meanwhile are seen. A goroutine for each delivery would cost more than
	// the rest of it, and hundreds of them that are ready to run keep the answers of the brokers waiting.
	patience = time.Millisecond
	// turn is how many records an intake reads, and how many it delivers, before it looks for other things.
	turn = 50
)

// watch is what an intake has delivered and waits for. It belongs to one goroutine.
type watch struct {
	in        *intake
	delivered []*delivery // the oldest first
	head      *delivery   // the oldest, since then
	since     time.Time
}

// outlook is what there is to deliver of a partition.
type outlook struct {
	starved bool      // something is ready, but there is no slot
	due     time.Time // when something is, else; the zero time: unknown
	full    bool      // no more should be read
	heavy   bool      // and it is full of bytes
}

// start delivers what is ready, as far as there are slots. The caller gives away the slot that it has.
func (w *watch) start(now time.Time, slot bool) (o outlook) {
	in := w.in
	in.sending.RLock()
	defer in.sending.RUnlock()
	var entries []*entry
	in.mu.Lock()
	o.full = in.txn != nil && in.txn.full()
	for !o.full && !in.stopped() {
		if o.starved, o.due = in.lane.waits(now); !o.starved || len(entries) == turn || !slot && !in.slot() {
			break
		}
		slot = false
		e := in.lane.take(now)
		entries = append(entries, e)
	}
	o.full = o.full || in.lane.full()
	o.heavy = in.lane.heavy()
	in.mu.Unlock()
	if slot {
		<-in.slots
	}
	for _, e := range entries {
		d := in.newDelivery(e)
		in.running.Add(1)
		w.delivered = append(w.delivered, d)
		d.number = in.sent.Add(1)
		in.out <- d.message // there is room for one message of each slot
	}
	return o
}

// queued tells whether the message probably lies in out.
func (s *subscription) queued(d *delivery) bool { return d.number > s.sent.Load()-int64(len(s.out)) }

// slot takes a slot if one is free.
func (s *subscription) slot() bool {
	select {
	case s.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// collect settles deliveries that have ended, and lets go of the others when the oldest takes long.
func (w *watch) collect(now time.Time) {
	late := w.head != nil && now.Sub(w.since) >= patience
	var ended []ending
	w.delivered = slices.DeleteFunc(w.delivered, func(d *delivery) bool {
		o, ok := d.ended()
		if ok {
			ended = append(ended, ending{d, o})
		}
		return ok
	})
	if late && w.head == w.oldest() {
		w.letGo()
	}
	w.in.settle(ended)
}

// oldest is the oldest delivery, or nil.
func (w *watch) oldest() *delivery {
	if len(w.delivered) == 0 {
		return nil
	}
	return w.delivered[0]
}

// due is when to look whether the oldest takes long, or the zero time. It does not while no handler has got it.
func (w *watch) due(now time.Time) time.Time {
	oldest := w.oldest()
	if oldest != w.head || oldest != nil && w.in.queued(oldest) {
		w.head, w.since = oldest, now
	}
	if w.head == nil {
		return time.Time{}
	}
	return w.since.Add(patience)
}

// next is the message whose end is waited for, or nil: the oldest, or a later one while messages wait for handlers, because
// a turn for each ack has its price, and nobody needs it then.
func (w *watch) next() *message.Message {
	if len(w.delivered) == 0 {
		return nil
	}
	got, _ := slices.BinarySearchFunc(w.delivered, true, func(d *delivery, _ bool) int {
		if w.in.queued(d) {
			return 1
		}
		return -1
	})
	return w.delivered[(len(w.delivered)-got)/2].message
}

// letGo gives what is delivered goroutines.
func (w *watch) letGo() {
	for _, d := range w.delivered {
		go func() {
			w.in.settle([]ending{{d, d.await()}})
			w.in.wakeUp()
		}()
	}
	w.delivered, w.head = nil, nil
}

// shut ends the deliveries of the claim. What no handler has got goes back to the lane.
func (w *watch) shut() {
	w.in.sending.Lock()
	w.in.takeBack(func(of *intake) bool { return of == w.in })
	w.in.sending.Unlock()
	w.letGo()
}

// finish closes out, and takes back what is there and no handler has got.
func (s *subscription) finish() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.takeBack(func(*intake) bool { return true })
	close(s.out)
}

// takeBack takes messages out of out. The caller holds sending, so there is room to put the others back.
func (s *subscription) takeBack(whose func(*intake) bool) {
	for range len(s.out) {
		select {
		case msg := <-s.out:
			if d := transport.DeliveryFrom(msg.Context()).(*delivery); whose(d.in) {
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
	d.in.mu.Lock()
	d.over = true
	d.in.lane.putBack(d.entry)
	d.in.mu.Unlock()
	d.withdrawn = true
	d.message.Nack()
}
