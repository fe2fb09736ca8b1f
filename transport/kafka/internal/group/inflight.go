package group

import (
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/lane"
)

const (
	// glance is how often a partition consumer looks at its deliveries while none of the ends that it waits for comes.
	glance = time.Millisecond
	// patience is how many glances a partition consumer itself waits for its oldest delivery. A slower delivery then gets its own
	// goroutine, so that nobody needs to look at it. While the next deliveries are slow too, the number of deliveries that get goroutines
	// doubles each time. A goroutine for every delivery would cost more than everything else about it, and hundreds of runnable goroutines
	// delay the handling of the brokers' answers. Glances are counted, not time, because handlers that wait for a processor are not slow.
	patience = 20
	// turn is how many records a partition consumer reads, and how many it delivers, before it does other work.
	turn = 50
)

// inFlight holds what a partition consumer has delivered and waits for. It is not safe for concurrent use.
type inFlight struct {
	partition *partitionConsumer
	delivered []*delivery // the oldest first
	head      *delivery   // the oldest
	glances   int         // at the head
	glanced   time.Time   // when the last one was
	slow      int         // how many deliveries in a row have got goroutines
}

// outlook says what a partition can deliver.
type outlook struct {
	starved bool      // a message is ready, but there is no slot
	due     time.Time // otherwise, when a message is ready; zero: unknown
	full    bool      // read no more records
	heavy   bool      // the budget has no room for more
	again   time.Time // when to ask the budget again; zero: it wakes the partition
}

// start delivers ready messages while there are slots. slot says that the caller has a slot, which start takes over.
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
	p.buffered.Store(int64(p.lane.Bytes()))
	reads, again := p.shared.Budget.Reads(p, p.lane.Bytes(), now)
	o.heavy, o.again = !reads, again
	o.full = o.full || p.lane.Full() || o.heavy
	p.mu.Unlock()
	if slot {
		<-p.slots
	}
	for _, e := range entries {
		d := p.newDelivery(e)
		p.running.Add(1)
		w.delivered = append(w.delivered, d)
		d.number = p.sent.Add(1)
		p.out <- d.message // out has room for one message per slot
	}
	return o
}

// queued reports whether the message is probably still in out.
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

// collect settles deliveries that have ended. If the oldest one takes long, it gives deliveries their own goroutines.
func (w *inFlight) collect(now time.Time) {
	head := w.head
	if head != nil && now.Sub(w.glanced) >= glance {
		w.glances, w.glanced = w.glances+1, now
	}
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
	case w.glances >= patience:
		w.letGo(w.slow + 1)
	}
	w.partition.settle(ended)
}

// oldest returns the oldest delivery, or nil.
func (w *inFlight) oldest() *delivery {
	if len(w.delivered) == 0 {
		return nil
	}
	return w.delivered[0]
}

// due returns when to look at the deliveries again, or zero. The time of the oldest does not run before a handler has it.
func (w *inFlight) due(now time.Time) time.Time {
	oldest := w.oldest()
	if oldest != w.head || oldest != nil && w.partition.queued(oldest) {
		w.head, w.glances, w.glanced = oldest, 0, now
	}
	if w.head == nil {
		return time.Time{}
	}
	return now.Add(glance)
}

// next returns the message to wait for, or nil. It is the oldest one or, while messages wait for handlers, a later one: handling each ack
// at once has a cost, and nothing needs it then.
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
	w.delivered, w.head, w.glances = slices.Delete(w.delivered, 0, n), nil, 0
	w.slow += n
}

// shut ends the deliveries of the claim. Messages that no handler has got go back to the lane.
func (w *inFlight) shut() {
	w.partition.sending.Lock()
	w.partition.takeBack(func(of *partitionConsumer) bool { return of == w.partition })
	w.partition.sending.Unlock()
	w.partition.putBackSolo()
	w.letGo(len(w.delivered))
}

// finish closes out, and takes back its messages that no handler has got.
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
			return // handlers have the rest
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
