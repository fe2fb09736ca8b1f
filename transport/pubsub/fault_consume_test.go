package pubsub_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// recovery bounds the wait until everything is handled after a fault: a connection that became a black hole is noticed
// within 40 s, gRPC's waits before it connects again grow to 20 s, and what was sent to the broken stream comes
// again when its lease ends.
const recovery = 2 * time.Minute

// TestConsumeOverAFaultyNetwork: the fault strikes while handlers run and acks are under way. Every event is handled, in its
// key's order; what is delivered again was handled before, as a claim absorbs it; and in the end nothing is left.
//
// The order is that in which the broker sends. The emulator (0.8.20) sends the later events of a key to the new stream
// while earlier ones lie on the broken one, and those again when their lease ends; its fake waits for each ack of a key.
func TestConsumeOverAFaultyNetwork(t *testing.T) {
	t.Parallel()
	onFaultyNetworks(t, faults, func(t *testing.T, n network, f fault) {
		topic := devtest.Topic(t)
		config := transport.SubscriberConfig{Consumer: "c", Ordered: true, Concurrency: 50}
		settings := pubsub.SubscriptionConfig{AckDeadline: 10 * time.Second}
		sent := newWire()
		s, messages := subscribe(t, connect(t, pubsub.Config{ClientOptions: append(n.faulty, sent.option()), Subscription: settings}), topic, config)
		direct := connect(t, pubsub.Config{ClientOptions: n.direct, Subscription: settings})

		got := newRecord()
		var handlers sync.WaitGroup
		handlers.Go(func() {
			for msg := range messages {
				handlers.Go(func() {
					pause(t, 20*time.Millisecond) // some of them run when it strikes
					got.note(msg)
					msg.Ack()
				})
			}
		})
		events := keyed(5, 20)
		p := batcher(t, direct)
		publishAll(t, p, topic, events[:20])
		require.Eventually(t, func() bool { return got.len() >= 10 }, wait, 5*time.Millisecond, "none has come")
		var struck sync.WaitGroup
		struck.Go(func() { f.strike(t, n.proxy) })
		for i := 20; i < len(events); i += 10 {
			publishAll(t, p, topic, events[i:i+10])
			pause(t, 50*time.Millisecond)
		}
		struck.Wait()
		require.Eventually(t, func() bool { return got.len() == len(events) }, recovery, 20*time.Millisecond,
			"events were lost")
		require.NoError(t, s.Close())
		handlers.Wait()
		if n.fake == nil {
			sent.requireOrder(t, got)
		} else {
			got.requireAll(t, events)
		}
		requireNothingLeft(t, direct, topic, config, got, events)
	}, "connections that a firewall forgot/fake") // which goes on sending to a client that is gone, for ever
}

// requireNothingLeft consumes what is left for the consumer: redeliveries of what it has handled, whose acks were lost, and
// behind them the last event of each key.
func requireNothingLeft(t *testing.T, tr *pubsub.Transport, topic string, config transport.SubscriberConfig, got *record, events []*message.Message) {
	t.Helper()
	last := map[string]bool{}
	for _, msg := range events {
		last[transport.Key(msg)] = true
	}
	p := batcher(t, tr)
	for key := range last {
		publishAll(t, p, topic, []*message.Message{newMessage(key, "last")})
	}
	_, messages := subscribe(t, tr, topic, config)
	for len(last) > 0 {
		select {
		case msg := <-messages:
			if string(msg.Payload) == "last" {
				delete(last, transport.Key(msg))
			} else {
				require.Positive(t, got.seen[msg.UUID], "%s of %s was not handled before", msg.Payload, transport.Key(msg))
			}
			msg.Ack()
		case <-time.After(recovery):
			t.Fatalf("the last events of %v have not come", last)
		}
	}
}
