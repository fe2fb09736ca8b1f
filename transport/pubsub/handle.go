package pubsub

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// nackDelay is how long a nacked message is held when nobody asked for a delay: Pub/Sub would redeliver it at once, and
// a handler that fails fast would run in a hot loop.
const nackDelay = 100 * time.Millisecond

// outcome is what became of one delivery.
type outcome int

const (
	acked outcome = iota
	nacked
	undelivered // never handed to a handler
	abandoned   // still running when the drain timeout ended
)

// handle is called by Google's client for each message: concurrently, but one after another for the messages of a key
// of an ordered subscription. The message stays leased until it is acked or nacked.
//
// An ordered message that is nacked is delivered again from here, not by Pub/Sub: the client may hold later messages of
// its key already, and they would overtake it.
func (s *subscription) handle(ctx context.Context, m *pubsub.Message) {
	inPlace := s.config.Ordered && m.OrderingKey != ""
	for retries := 0; ; retries++ {
		delivery := newDelivery(m, retries)
		switch s.deliver(ctx, m, delivery) {
		case acked:
			s.ack(ctx, m)
			return
		case undelivered, abandoned:
			m.Nack()
			return
		case nacked:
			select {
			case <-time.After(delivery.delay()):
			case <-s.stop: // hold nothing back from those that go on
				m.Nack()
				return
			}
			if !inPlace {
				m.Nack()
				return
			}
		}
	}
}

// deliver hands the message to a handler and waits for its end. It occupies a slot only in between.
func (s *subscription) deliver(ctx context.Context, m *pubsub.Message, delivery *delivery) outcome {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-s.stop:
		return undelivered
	}
	ctx, cancel := context.WithCancel(transport.WithDelivery(ctx, delivery))
	defer cancel()
	msg := unmarshal(m)
	msg.SetContext(ctx)
	if !s.send(msg) {
		return undelivered
	}
	return await(ctx, msg)
}

// send hands the message over. It returns false when the subscription was closed before a handler took it.
func (s *subscription) send(msg *message.Message) bool {
	s.sending.RLock()
	defer s.sending.RUnlock()
	select {
	case <-s.stop: // of two ready cases the next select takes any, and out may be closed
		return false
	default:
	}
	select {
	case s.out <- msg:
		return true
	case <-s.stop:
		return false
	}
}

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

// ack acks the message. With exactly-once delivery it also learns, in the background, whether the ack was in time.
func (s *subscription) ack(ctx context.Context, m *pubsub.Message) {
	if !s.settings.ExactlyOnce {
		m.Ack()
		return
	}
	result := m.AckWithResult()
	s.results.Go(func() {
		// Bounded, because a stream that fails takes its pending results with it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.settings.AckDeadline)
		defer cancel()
		if _, err := result.Get(ctx); err != nil {
			s.transport.ackFailures.Add(1)
			s.log.Warn("ack refused, the message will be delivered again", slog.Any("error", err),
				slog.String("event_id", m.Attributes[idAttribute]))
		}
	})
}

// delivery implements transport.Delivery.
type delivery struct {
	attempt int
	after   atomic.Int64 // nanoseconds; 0: nobody asked
}

func newDelivery(m *pubsub.Message, retries int) *delivery {
	d := &delivery{}
	if m.DeliveryAttempt != nil { // only with a dead-letter policy
		d.attempt = *m.DeliveryAttempt + retries
	}
	return d
}

func (d *delivery) Attempt() int                   { return d.attempt }
func (d *delivery) RetryAfter(after time.Duration) { d.after.Store(int64(after)) }
func (d *delivery) Handled()                       {}

func (d *delivery) delay() time.Duration {
	if after := time.Duration(d.after.Load()); after > 0 {
		return after
	}
	return nackDelay
}
