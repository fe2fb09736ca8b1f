package receive

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/resource"
	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
)

// alone is a subscription without Pub/Sub, whose handler is handler. The caller closes its out.
func alone(t *testing.T, own setting.Subscription, handler func(*message.Message)) *Subscription {
	observer, err := NewObserver(noop.NewMeterProvider())
	require.NoError(t, err)
	s := New(Shared{Observer: observer}, Config{
		Subscription: resource.Subscription{Topic: "topic", Consumer: "c", Subscription: own},
		Concurrency:  1,
		Log:          slog.Default(),
	})
	go func() {
		for msg := range s.out {
			handler(msg)
		}
	}()
	return s
}

// TestLeaseEndsRetriesInPlace: when its lease is renewed no more, Pub/Sub delivers the message again, perhaps elsewhere.
func TestLeaseEndsRetriesInPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		deliveries := 0
		s := alone(t, setting.Subscription{DeadLetters: "dead", MaxAttempts: 10}, func(msg *message.Message) {
			deliveries++
			transport.DeliveryFrom(msg.Context()).RetryAfter(25 * time.Minute)
			msg.Nack()
		})
		defer close(s.out)
		began := time.Now()
		s.handle(t.Context(), &pubsub.Message{}, nil)
		require.Equal(t, 75*time.Minute, time.Since(began))
		require.Equal(t, 3, deliveries)
	})
}

// TestLeaseEndsWhileHeld: Pub/Sub delivers the message again when its lease ends. What is held longer would take room for
// nothing, once for each delivery.
func TestLeaseEndsWhileHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t, setting.Subscription{}, func(msg *message.Message) {
			transport.DeliveryFrom(msg.Context()).RetryAfter(24 * time.Hour)
			msg.Nack()
		})
		defer close(s.out)
		began := time.Now()
		s.handle(t.Context(), &pubsub.Message{}, nil)
		require.Equal(t, maxLease, time.Since(began))
	})
}

// TestOrderedRetriesFollowThePolicy: Pub/Sub does not see retries in place, so the policy is heeded here.
func TestOrderedRetriesFollowThePolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var waits []time.Duration
		last := time.Now()
		s := alone(t, setting.Subscription{Ordered: true, RetryMin: time.Second, RetryMax: 5 * time.Second}, func(msg *message.Message) {
			waits = append(waits, time.Since(last))
			last = time.Now()
			switch {
			case len(waits) == 6:
				msg.Ack()
				return
			case len(waits) == 3:
				transport.DeliveryFrom(msg.Context()).RetryAfter(time.Millisecond)
			}
			msg.Nack()
		})
		defer close(s.out)
		s.handle(t.Context(), &pubsub.Message{OrderingKey: "key"}, nil)
		require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second, time.Millisecond, 4 * time.Second, 5 * time.Second}, waits)
	})
}

// TestRetryInPlaceIsTheSameMessage, whatever the handler has done to its copy.
func TestRetryInPlaceIsTheSameMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var payloads []string
		s := alone(t, setting.Subscription{Ordered: true}, func(msg *message.Message) {
			payloads = append(payloads, string(msg.Payload))
			if len(payloads) == 2 {
				msg.Ack()
				return
			}
			clear(msg.Payload)
			msg.Nack()
		})
		defer close(s.out)
		s.handle(t.Context(), &pubsub.Message{OrderingKey: "key", Data: []byte("data")}, nil)
		require.Equal(t, []string{"data", "data"}, payloads)
	})
}

// TestOrderedBeyondLease: an ordered message was retried in place for longer than its lease was renewed, and so were the
// later ones of its key that waited behind it: another process got them meanwhile, doubled and out of order.
func TestOrderedBeyondLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const outage = 7 * 24 * time.Hour // for which a subscription keeps messages
		began, deliveries := time.Now(), 0
		s := alone(t, setting.Subscription{Ordered: true}, func(msg *message.Message) {
			deliveries++
			if time.Since(began) >= outage {
				msg.Ack()
				return
			}
			transport.DeliveryFrom(msg.Context()).RetryAfter(2 * time.Hour)
			msg.Nack()
		})
		defer close(s.out)
		require.Greater(t, s.receiveSettings(1).MaxExtension, 31*24*time.Hour, "the longest retention")
		s.handle(t.Context(), &pubsub.Message{OrderingKey: "k"}, nil)
		require.Equal(t, outage, time.Since(began))
		require.Equal(t, 1+7*12, deliveries)
	})
	// One that is not ordered goes back: nothing waits for it.
	require.Equal(t, maxLease, (&Subscription{}).receiveSettings(1).MaxExtension)
}
