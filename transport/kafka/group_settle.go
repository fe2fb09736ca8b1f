package kafka

import (
	"time"

	"github.com/millrace-go/millrace/internal/tracing"
)

// ending is the end of a delivery.
type ending struct {
	*delivery
	outcome outcome
}

// settle ends deliveries.
func (in *intake) settle(ended []ending) {
	if len(ended) == 0 {
		return
	}
	outputs := make([][]*output, len(ended))
	for i, d := range ended {
		d.End()
		in.observe(d)
		if d.unit != nil {
			outputs[i] = d.unit.end()
		}
	}
	var released []*entry
	in.mu.Lock()
	for i, d := range ended {
		if d.outcome == withdrawn {
			continue
		}
		d.over = true
		e := d.entry
		var f fate
		var wait time.Duration
		switch f, e.failures, wait = in.settings.decide(d.outcome, e.failures, d.wish()); f {
		case finished:
			e.outputs = outputs[i]
			released = append(released, in.lane.done(e)...)
		case again:
			in.lane.retry(e, time.Now().Add(wait))
		case dead:
			in.running.Go(func() { in.settleDead(e) })
		case dropped:
		}
	}
	in.release(released)
	in.mu.Unlock()
	for range ended {
		<-in.slots // not earlier: who has all of them knows that everything is marked
		in.running.Done()
	}
}

// observe tells what became of a delivery.
func (in *intake) observe(d ending) {
	if d.outcome == withdrawn {
		d.span.End()
		return
	}
	wished := d.wish() > 0
	in.observer.delivered(in.messages, d.outcome, wished)
	tracing.End(d.span, outcomeNames[d.outcome], d.outcome != acked && !wished) // a delay that the handler asked for is no failure
}

// settleDead ends the record that failed too often.
func (in *intake) settleDead(e *entry) {
	buried := in.bury(in.messages, e)
	in.update(func(l *lane) {
		if buried {
			in.release(l.done(e))
		} else {
			l.retry(e, time.Now().Add(buryDelay))
		}
	})
}
