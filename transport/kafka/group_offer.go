package kafka

import (
	"context"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
)

// offer is what a partition has to deliver next. First it waits for one of the subscription's slots, then for somebody
// who takes the message. It belongs to one goroutine.
type offer struct {
	p      *partition
	entry  *entry
	msg    *message.Message // when there is a slot
	cancel context.CancelFunc
	d      *delivery
}

// next looks for a record when there is none. It returns when there may be one, and whether the lane is full.
func (o *offer) next() (due time.Time, full bool) {
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	if o.entry == nil {
		o.entry, due = o.p.lane.take(time.Now())
	}
	return due, o.p.lane.full()
}

// slot returns the channel that gives a slot, when one is needed.
func (o *offer) slot() chan<- struct{} {
	if o.entry == nil || o.msg != nil {
		return nil
	}
	return o.p.slots
}

// receiver returns the channel to the handlers, when there is a message for them.
func (o *offer) receiver() chan<- *message.Message {
	if o.msg == nil {
		return nil
	}
	return o.p.out
}

// prepare makes the message, after a slot was got.
func (o *offer) prepare() {
	p, e := o.p, o.entry
	d := &delivery{attempt: e.attempts}
	d.handled = func() {
		p.update(func(l *lane) {
			if !d.over {
				l.handled(e)
			}
		})
	}
	o.d = d
	o.msg, o.cancel = newMessage(p.messages, e.value.(*sarama.ConsumerMessage), d)
}

// taken lets a handler have the message.
func (o *offer) taken() {
	p, e, msg, d, cancel := o.p, o.entry, o.msg, o.d, o.cancel
	p.running.Go(func() {
		defer cancel()
		p.settle(e, d, await(msg.Context(), msg))
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
		<-o.p.slots
	}
	o.p.update(func(l *lane) { l.putBack(o.entry) })
}

// settle ends a delivery.
func (p *partition) settle(e *entry, d *delivery, o outcome) {
	p.observer.delivered(p.messages, o, d.wish() > 0)
	var f fate
	p.update(func(l *lane) {
		d.over = true
		var wait time.Duration
		switch f, e.failures, wait = p.settings.decide(o, e.failures, d.wish()); f {
		case finished:
			p.release(l.done(e))
		case again:
			l.retry(e, time.Now().Add(wait))
		case dead, dropped:
		}
	})
	<-p.slots // not earlier: who has all of them knows that everything is marked
	if f != dead {
		return
	}
	buried := p.bury(p.messages, e)
	p.update(func(l *lane) {
		if buried {
			p.release(l.done(e))
		} else {
			l.retry(e, time.Now().Add(buryDelay))
		}
	})
}
