package pubsub

import (
	"context"
	"log/slog"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

const (
	// nackDelay is how long a nacked message is held when neither the handler nor a retry policy says: Pub/Sub would
	// redeliver it at once, and a handler that fails fast would run in a hot loop.
	nackDelay = 100 * time.Millisecond
	// buryDelay is the same for a message that should be in the dead-letter topic and could not be sent there.
	buryDelay = time.Second
)

// handle is called by Google's client for each message: concurrently, but one after another for the messages of a key
// of an ordered subscription. The message stays leased until it is acked or nacked.
//
// Some nacked messages are delivered again from here, not by Pub/Sub. Ordered ones, because the client may hold later
// messages of their keys already, and these would overtake them. And those whose handler asked for a delay (contention)
// where Pub/Sub would count that against the message or let it wait by its own policy.
//
// All of that ends with giveUp, when the stream that the message came from has failed: then its ack would not be sent, and
// it comes again on another stream, which is not opened before handle has returned.
func (s *subscription) handle(ctx context.Context, m *pubsub.Message, giveUp <-chan struct{}) {
	began := time.Now()
	ordered := s.config.Ordered && m.OrderingKey != ""
	for retries := 0; ; {
		delivery := newDelivery(m, retries)
		delivery.giveUp = giveUp
		switch s.deliver(ctx, m, delivery) {
		case acked:
			s.ack(ctx, m)
			return
		case undelivered, abandoned:
			s.nack(ctx, m)
			return
		case nacked:
		}
		inPlace, wait := ordered, delivery.delay()
		cause := delivery.Rejected()
		switch {
		case cause != nil:
			if s.bury(ctx, m, retries, cause) {
				s.ack(ctx, m)
				return
			}
			wait = buryDelay
		case delivery.asked():
			inPlace = ordered || s.policy()
		case ordered && s.exhausted(m, retries):
			if s.bury(ctx, m, retries, nil) {
				s.ack(ctx, m)
				return
			}
			wait = buryDelay
		default:
			wait = s.settings.Retry.wait(retries, inPlace)
		}
		if !s.hold(ctx, min(wait, s.lease()), giveUp) || !inPlace || time.Since(began) >= s.lease() {
			s.nack(ctx, m)
			return
		}
		s.observer.retried(ctx)
		if !delivery.asked() && cause == nil {
			retries++
		}
	}
}

// wait is how long a message is held that was nacked without a wish: by the retry policy when it comes again in place,
// else Pub/Sub heeds that.
func (r Retry) wait(retries int, inPlace bool) time.Duration {
	switch {
	case r == Retry{}:
		return nackDelay
	case !inPlace:
		return 0
	}
	wait := max(r.Min, nackDelay)
	for range retries {
		if wait >= r.Max {
			break
		}
		wait *= 2
	}
	return min(wait, max(r.Max, nackDelay))
}

// hold keeps the message for d. It returns false on giveUp, and when the subscription closes: then nothing is held back
// from those that go on.
func (s *subscription) hold(ctx context.Context, d time.Duration, giveUp <-chan struct{}) bool {
	s.observer.holds(ctx, 1)
	defer s.observer.holds(ctx, -1)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.stop:
		return false
	case <-giveUp:
		return false
	}
}

func (s *subscription) ack(ctx context.Context, m *pubsub.Message) {
	s.watch(ctx, m, m.AckWithResult(), opAck)
}

func (s *subscription) nack(ctx context.Context, m *pubsub.Message) {
	s.watch(ctx, m, m.NackWithResult(), opNack)
}

// watch learns in the background whether an ack or nack was in time. Only exactly-once delivery tells; without it the
// result is there at once and says nothing.
func (s *subscription) watch(ctx context.Context, m *pubsub.Message, result *pubsub.AckResult, op string) {
	select {
	case <-result.Ready():
		return
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flushed {
		return
	}
	s.results.Go(func() {
		// Bounded, because a stream that fails takes its pending results with it. When the drain timeout has ended it is
		// not worth the rest of a long deadline.
		waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.settings.AckDeadline)
		defer cancel()
		defer context.AfterFunc(ctx, func() { time.AfterFunc(conn.FlushTimeout, cancel) })()
		if _, err := result.Get(waiting); err != nil {
			if op == opAck {
				s.transport.ackFailures.Add(1)
			}
			s.observer.refused(ctx, op)
			s.log.Warn("Pub/Sub has refused an ack or nack, the message will be delivered again", slog.String("operation", op),
				slog.Any("error", err), slog.String("event_id", m.Attributes[wire.IDAttribute]))
		}
	})
}
