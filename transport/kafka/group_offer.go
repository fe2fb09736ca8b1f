package kafka

import (
	"context"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// offer is what an intake has to deliver next. First it waits for one of the subscription's slots, then for somebody
// who takes the message. It belongs to one goroutine.
type offer struct {
	in     *intake
	entry  *entry
	msg    *message.Message // when there is a slot
	ctx    context.Context  // of msg: a handler that has the message may give it another one
	cancel context.CancelFunc
	d      *delivery
}

// next looks for a record when there is none. It returns when there may be one, and whether the lane is full, and so in bytes.
func (o *offer) next() (due time.Time, full, heavy bool) {
	o.in.mu.Lock()
	defer o.in.mu.Unlock()
	full = o.in.txn != nil && o.in.txn.full()
	if o.entry == nil && !full {
		o.entry, due = o.in.lane.take(time.Now())
	}
	return due, o.in.lane.full() || full, o.in.lane.heavy()
}

// slot returns the channel that gives a slot, when one is needed.
func (o *offer) slot() chan<- struct{} {
	if o.entry == nil || o.msg != nil {
		return nil
	}
	return o.in.slots
}

// reserve takes a slot when one is needed and free, which saves a turn of deliver.
func (o *offer) reserve() {
	select {
	case o.slot() <- struct{}{}:
		o.prepare()
	default:
	}
}

// receiver returns the channel to the handlers, when there is a message for them.
func (o *offer) receiver() chan<- *message.Message {
	if o.msg == nil {
		return nil
	}
	return o.in.out
}

// prepare makes the message, after a slot was got.
func (o *offer) prepare() {
	in, e := o.in, o.entry
	d := &delivery{attempt: e.attempts}
	d.handled = func() {
		in.update(func(l *lane) {
			if !d.over {
				l.handled(e)
			}
		})
	}
	o.d = d
	ctx := in.messages
	if in.committer != nil {
		d.unit = &unit{publisher: in.transport.publisher}
		ctx = transport.WithUnit(ctx, d.unit)
	}
	o.msg, o.cancel = newMessage(ctx, in.tracing, e.value.(*sarama.ConsumerMessage), d)
	o.ctx = o.msg.Context()
}

// taken lets a handler have the message.
func (o *offer) taken() {
	in, e, msg, ctx, d, cancel := o.in, o.entry, o.msg, o.ctx, o.d, o.cancel
	in.running.Go(func() {
		defer cancel()
		in.settle(e, d, await(ctx, msg))
	})
	o.entry, o.msg = nil, nil
}

// withdraw ends the offer: nobody has seen the message.
func (o *offer) withdraw() {
	if o.entry == nil {
		return
	}
	if o.msg != nil {
		o.cancel()
		o.d.span.End()
		<-o.in.slots
	}
	o.in.update(func(l *lane) { l.putBack(o.entry) })
}

// settle ends a delivery.
func (in *intake) settle(e *entry, d *delivery, o outcome) {
	in.observer.delivered(in.messages, o, d.wish() > 0)
	endSpan(d.span, o, d.wish() > 0)
	var outputs []*output
	if d.unit != nil {
		outputs = d.unit.end()
	}
	var f fate
	in.update(func(l *lane) {
		d.over = true
		var wait time.Duration
		switch f, e.failures, wait = in.settings.decide(o, e.failures, d.wish()); f {
		case finished:
			e.outputs = outputs
			in.release(l.done(e))
		case again:
			l.retry(e, time.Now().Add(wait))
		case dead, dropped:
		}
	})
	<-in.slots // not earlier: who has all of them knows that everything is marked
	if f != dead {
		return
	}
	buried := in.bury(in.messages, e)
	in.update(func(l *lane) {
		if buried {
			in.release(l.done(e))
		} else {
			l.retry(e, time.Now().Add(buryDelay))
		}
	})
}
