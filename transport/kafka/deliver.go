package kafka

import (
	"bytes"
	"context"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/transport"
)

// outcome is what became of one delivery.
type outcome int

const (
	acked outcome = iota
	nacked
	abandoned // still running when the drain timeout ended
)

// delivery implements transport.Delivery.
type delivery struct {
	attempt int
	after   atomic.Int64 // nanoseconds; 0: nobody asked
	handled func()
	unit    *unit // of transactional delivery
	span    trace.Span
	over    bool // guarded by the intake's lock
}

func (d *delivery) Attempt() int                   { return d.attempt }
func (d *delivery) RetryAfter(after time.Duration) { d.after.Store(int64(after)) }
func (d *delivery) Handled()                       { d.handled() }

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

// newMessage returns what a handler gets. It has its own payload, because the record may be delivered again.
func newMessage(ctx context.Context, t tracing, record *sarama.ConsumerMessage, d *delivery) (*message.Message, context.CancelFunc) {
	msg := unmarshal(record)
	msg.Payload = bytes.Clone(record.Value)
	ctx, d.span = t.process(ctx, record, msg, d.attempt)
	ctx, cancel := context.WithCancel(transport.WithDelivery(ctx, d))
	msg.SetContext(ctx)
	return msg, cancel
}

// await waits for the end of a delivery.
func await(ctx context.Context, msg *message.Message) outcome {
	select {
	case <-msg.Acked():
		return acked
	case <-msg.Nacked():
		return nacked
	case <-ctx.Done():
	}
	select {
	case <-msg.Acked(): // both at once: what is done is done
		return acked
	default:
		return abandoned
	}
}
