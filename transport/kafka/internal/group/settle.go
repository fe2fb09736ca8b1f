package group

import (
	"time"

	"github.com/millrace-go/millrace/internal/tracing"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/lane"
	"github.com/millrace-go/millrace/transport/kafka/internal/produce"
)

// ending is an ended delivery with its outcome.
type ending struct {
	*delivery
	outcome lane.Outcome
}

// settle handles ended deliveries.
func (p *partitionConsumer) settle(ended []ending) {
	if len(ended) == 0 {
		return
	}
	outputs := make([][]*produce.Output, len(ended))
	for i, d := range ended {
		d.End()
		p.observe(d)
		outputs[i] = d.unit.End()
	}
	var released []*lane.Entry
	p.mu.Lock()
	alone := false
	for i, d := range ended {
		alone = p.endSolo(d) || alone
		if d.outcome == lane.Withdrawn {
			continue
		}
		d.over = true
		e := d.entry
		var fate lane.Fate
		var wait time.Duration
		fate, e.Failures, wait = p.config.Policy.Decide(d.outcome, d.Rejected() != nil, e.Failures, d.wish())
		switch fate {
		case lane.Finished:
			consumedOf(e).outputs = outputs[i]
			released = append(released, p.lane.Done(e)...)
		case lane.Again:
			p.lane.Retry(e, time.Now().Add(wait))
		case lane.Dead:
			p.running.Go(func() { p.settleDead(e, reasonOf(d.Rejected()), d.Rejected()) })
		case lane.Dropped:
		}
	}
	p.release(released)
	if alone {
		p.txn.Mark(p.next.Load(), p.solo.guard.Note())
	}
	p.mu.Unlock()
	p.shared.Gate.Leave(len(ended))
	for range ended {
		<-p.slots // last: the owner of all slots may rely on all marks being done
		p.running.Done()
	}
}

// observe reports the outcome of a delivery.
func (p *partitionConsumer) observe(d ending) {
	if d.outcome == lane.Withdrawn {
		d.span.End()
		return
	}
	wished := d.wish() > 0
	p.observer.delivered(p.messages, d.outcome, wished)
	tracing.End(d.span, d.outcome.String(), d.outcome != lane.Acked && !wished) // a delay that the handler asked for is no failure
}

// reasonOf returns the reason of a dead record: it was rejected with cause or, if cause is nil, it failed too often.
func reasonOf(cause error) string {
	if cause == nil {
		return deadAttempts
	}
	return transport.DeadRejected
}

// settleDead ends a dead record.
func (p *partitionConsumer) settleDead(e *lane.Entry, reason string, cause error) {
	sent := p.deadLetter(p.messages, e, reason, cause)
	p.update(func(l *lane.Lane) {
		if sent {
			p.release(l.Done(e))
		} else {
			l.Retry(e, time.Now().Add(deadLetterDelay))
		}
	})
}
