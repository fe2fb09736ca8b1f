package pubsub_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestPublishOverAFaultyNetwork: a relay publishes what is left until all of it is acknowledged. Whatever the network
// does meanwhile, each batch has its results by its deadline, and every event arrives, in its key's order.
func TestPublishOverAFaultyNetwork(t *testing.T) {
	t.Parallel()
	onFaultyNetworks(t, faults, func(t *testing.T, n network, f fault) {
		topic := devtest.Topic(t)
		_, messages := subscribe(t, connect(t, pubsub.Config{ClientOptions: n.direct}), topic,
			transport.SubscriberConfig{Consumer: "c", Ordered: true, Concurrency: 50})
		p := batcher(t, connect(t, pubsub.Config{ClientOptions: n.faulty}))
		got := newRecord()
		events := keyed(5, 40)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for got.len() < len(events) {
				select {
				case msg, ok := <-messages:
					if !ok {
						return
					}
					got.note(msg)
					msg.Ack()
				case <-t.Context().Done():
					return
				}
			}
		}()

		// The first of them before the fault, so that it strikes connections that are open.
		publishAll(t, p, topic, events[:20])
		struck := make(chan struct{})
		go func() {
			defer close(struck)
			f.strike(t, n.proxy)
		}()
		for i := 20; i < len(events); i += 20 {
			publishAll(t, p, topic, events[i:i+20])
			pause(t, 10*time.Millisecond)
		}
		<-struck
		select {
		case <-done:
		case <-time.After(wait):
			t.Errorf("%d of %d events have come", got.len(), len(events))
		}
		got.requireAll(t, events)
	})
}

// publishAll publishes as a relay does: what has failed again, until nothing is left.
func publishAll(t *testing.T, p transport.BatchPublisher, topic string, left []*message.Message) {
	t.Helper()
	const deadline, grace = 3 * time.Second, 20 * time.Second
	for len(left) > 0 {
		require.NoError(t, t.Context().Err())
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		began := time.Now()
		results := p.PublishBatch(ctx, topic, left)
		cancel()
		require.Less(t, time.Since(began), deadline+grace, "the batch outlived its deadline")
		require.Len(t, results, len(left))
		var again []*message.Message
		failed := map[string]bool{}
		for i, err := range results {
			key := transport.Key(left[i])
			if err != nil {
				again = append(again, left[i])
				failed[key] = true
			} else {
				require.False(t, failed[key], "sent after an earlier event of its key had failed")
			}
		}
		if len(again) > 0 {
			pause(t, 50*time.Millisecond)
		}
		left = again
	}
}
