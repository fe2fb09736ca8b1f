package receive

import (
	"context"
	"log/slog"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
	"github.com/millrace-go/millrace/transport/pubsub/internal/nack"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// handle is called by Google's client for each message: concurrently, but one after another for the messages of a key
// of an ordered subscription. The message stays leased until it is acked or nacked.
//
// What comes again from here (package nack) does so until giveUp, when the stream that the message came from has failed: then its
// ack would not be sent, and it comes again on another stream, which is not opened before handle has returned.
func (s *Subscription) handle(ctx context.Context, m *pubsub.Message, giveUp <-chan struct{}) {
	began := time.Now()
	ordered := s.config.Ordered && m.OrderingKey != ""
	for retries := 0; ; {
		delivery := NewDelivery(m, retries, giveUp)
		switch s.Deliver(ctx, m, delivery) {
		case Acked:
			s.ack(ctx, m)
			return
		case Undelivered, Abandoned:
			s.nack(ctx, m)
			return
		case Nacked:
		}
		cause := delivery.Rejected()
		fate := s.policy.After(nack.Nack{
			Ordered:  ordered,
			Rejected: cause != nil,
			Wish:     delivery.Delay(),
			Attempts: attempts(m, retries),
			Retries:  retries,
		})
		if fate.Dead && s.DeadLetter(ctx, m, retries, cause) {
			s.ack(ctx, m)
			return
		}
		if !s.Hold(ctx, min(fate.Wait, s.lease()), giveUp) || !fate.InPlace || time.Since(began) >= s.lease() {
			s.nack(ctx, m)
			return
		}
		s.CountRetry(ctx)
		if fate.Failed {
			retries++
		}
	}
}

// Hold keeps the message for d. It returns false on giveUp, and when the subscription closes: then nothing is held back
// from those that go on.
func (s *Subscription) Hold(ctx context.Context, d time.Duration, giveUp <-chan struct{}) bool {
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

// CountRetry counts a message that is delivered again from here.
func (s *Subscription) CountRetry(ctx context.Context) {
	s.observer.retries.Add(ctx, 1, s.observer.all)
}

func (s *Subscription) ack(ctx context.Context, m *pubsub.Message) {
	s.watch(ctx, m, m.AckWithResult(), opAck)
}

func (s *Subscription) nack(ctx context.Context, m *pubsub.Message) {
	s.watch(ctx, m, m.NackWithResult(), opNack)
}

// watch learns in the background whether an ack or nack was in time. Only exactly-once delivery tells; without it the
// result is there at once and says nothing.
func (s *Subscription) watch(ctx context.Context, m *pubsub.Message, result *pubsub.AckResult, op string) {
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
		waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.AckDeadline)
		defer cancel()
		defer context.AfterFunc(ctx, func() { time.AfterFunc(conn.FlushTimeout, cancel) })()
		if _, err := result.Get(waiting); err != nil {
			if op == opAck {
				s.shared.AckFailures.Add(1)
			}
			s.observer.refused(ctx, op)
			s.log.Warn("Pub/Sub has refused an ack or nack, the message will be delivered again", slog.String("operation", op),
				slog.Any("error", err), slog.String("event_id", m.Attributes[wire.IDAttribute]))
		}
	})
}
