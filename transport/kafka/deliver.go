package kafka

import (
	"bytes"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/internal/lifespan"
	"github.com/millrace-go/millrace/transport"
)

// outcome is what became of one delivery.
type outcome int

const (
	acked outcome = iota
	nacked
	abandoned // still running when the drain timeout ended
	withdrawn // no handler got it
)

// delivery implements transport.Delivery. It also is the context of its message.
type delivery struct {
	lifespan.Context
	in      *intake
	entry   *entry
	message *message.Message
	attempt int
	number  int64        // of the subscription's deliveries
	after   atomic.Int64 // nanoseconds; 0: nobody asked
	unit    *unit        // of transactional delivery
	span    trace.Span

	record       *sarama.ConsumerMessage
	unidentified error // why the message has no event ID

	over      bool // guarded by the intake's lock
	withdrawn bool // taken back before a handler got it; set before the message is nacked
}

// Attempt implements transport.Delivery.
func (d *delivery) Attempt() int { return d.attempt }

// RetryAfter implements transport.Delivery.
func (d *delivery) RetryAfter(after time.Duration) { d.after.Store(int64(after)) }

// Handled implements transport.Delivery. After a nack it is too late, also while the intake has not seen that yet: the
// record is to come before the next one of its key.
func (d *delivery) Handled() {
	d.in.update(func(l *lane) {
		if _, ended := d.ended(); !ended && !d.over {
			l.handled(d.entry)
		}
	})
}

// wish is the delay that the handler asked for. Without one a nack is a failure of the message.
func (d *delivery) wish() time.Duration { return time.Duration(d.after.Load()) }

// fate is what is to become of a record after a delivery.
type fate int

const (
	finished fate = iota
	again         // after the wait
	dead          // it goes to the dead-letter topic
	dropped       // nothing: nobody knows what the handler did
)

// decide tells the fate of a record whose delivery had this outcome. failures are those before it, and after it.
func (c ConsumerConfig) decide(o outcome, failures int, wish time.Duration) (f fate, failed int, wait time.Duration) {
	switch {
	case o == acked:
		return finished, failures, 0
	case o == abandoned:
		return dropped, failures, 0
	case wish > 0: // contention, say
		return again, failures, wish
	}
	failures++
	if c.DeadLetter.Topic != "" && failures >= c.DeadLetter.MaxAttempts {
		return dead, failures, 0
	}
	return again, failures, c.Retry.wait(failures)
}

// wait is how long to wait after that many failures.
func (r Retry) wait(failures int) time.Duration {
	wait := r.Min
	for i := 1; i < failures && wait < r.Max; i++ {
		wait *= 2
	}
	return min(wait, r.Max)
}

// newDelivery makes what a handler gets of an entry. It has its own payload, because the record may be delivered again.
func (in *intake) newDelivery(e *entry) *delivery {
	record := e.value.(*sarama.ConsumerMessage)
	d := &delivery{in: in, entry: e, attempt: e.attempts, record: record, message: unmarshal(record)}
	d.message.Payload = bytes.Clone(record.Value)
	d.unidentified = in.settings.identify(d.message, placeOf(record))
	d.Context.Context, d.span = process(in.messages, in.tracing, record, d.message, d.attempt)
	ctx := transport.WithDelivery(d, d)
	if in.committer != nil {
		d.unit = &unit{publisher: in.transport.publisher, delivery: d}
		ctx = transport.WithUnit(ctx, d.unit)
	}
	d.message.SetContext(ctx)
	return d
}

// ended tells whether the delivery has ended, and how.
func (d *delivery) ended() (o outcome, ok bool) {
	select {
	case <-d.message.Acked():
		return acked, true
	default:
	}
	select {
	case <-d.message.Nacked():
		if d.withdrawn {
			return withdrawn, true
		}
		return nacked, true
	default:
	}
	return abandoned, false
}

// await waits for the end of the delivery.
func (d *delivery) await() outcome {
	select {
	case <-d.message.Acked():
	case <-d.message.Nacked():
	case <-d.in.messages.Done():
	}
	o, _ := d.ended() // both at once: what is done is done
	return o
}
