package pubsub_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestReceivingEndsWhileMessagesWait: after an error that ends its receiving Google's client waits for the messages that it
// has handed out. One that was held for an hour, or retried in place for ever, would keep the subscription deaf as long.
// What no handler has seen is not handled either: its ack could not be sent, so that it would be handled twice.
func TestReceivingEndsWhileMessagesWait(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		server, options := fake(t)
		topic := devtest.Topic(t)
		b := &breaker{}
		tr := connect(t, pubsub.Config{ClientOptions: append([]option.ClientOption{b.option()}, options...)})
		_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Ordered: ordered, Concurrency: 1})
		require.NoError(t, batcher(t, tr).Publish(topic, newMessage("a", "held")))
		held := next(t, messages)
		transport.DeliveryFrom(held.Context()).RetryAfter(time.Hour)
		held.Nack()
		require.NoError(t, batcher(t, tr).Publish(topic, newMessage("b", "running")))
		running := next(t, messages)
		require.NoError(t, batcher(t, tr).Publish(topic, newMessage("b", "waiting"), newMessage("c", "waiting too")))
		require.Eventually(t, func() bool {
			handed := 0
			for _, m := range server.Messages() {
				handed += min(m.Deliveries, 1)
			}
			return handed == 4 || ordered && handed == 3 // pstest waits for the ack of the one before
		}, wait, time.Millisecond)

		b.breakAll(status.Error(codes.FailedPrecondition, "broken"))
		running.Ack()
		require.Eventually(t, func() bool { return b.count() == 2 }, wait, time.Millisecond, "receiving goes on")
		leasesEnd(server)
		require.Eventually(t, func() bool { // whether the handler's ack was sent before the client had noticed or not
			select {
			case msg := <-messages:
				msg.Ack()
			default:
			}
			return acked(server) == 4
		}, wait, time.Millisecond)
	}
}

// TestReceivingEndsWhileNobodyReads: what lies ready for a handler goes back, so that the subscription is not deaf until
// somebody takes it, and is not handled for an ack that cannot be sent.
func TestReceivingEndsWhileNobodyReads(t *testing.T) {
	t.Parallel()
	server, options := fake(t)
	topic := devtest.Topic(t)
	b := &breaker{}
	tr := connect(t, pubsub.Config{ClientOptions: append([]option.ClientOption{b.option()}, options...)})
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Concurrency: 2})
	require.NoError(t, batcher(t, tr).Publish(topic, newMessage("", "1"), newMessage("", "2")))
	require.Eventually(t, func() bool { return len(messages) == 2 }, wait, time.Millisecond, "they lie ready")

	b.breakAll(status.Error(codes.FailedPrecondition, "broken"))
	require.Eventually(t, func() bool { return b.count() == 2 }, wait, time.Millisecond, "receiving goes on")
	leasesEnd(server)
	for range 2 {
		next(t, messages).Ack()
	}
	require.Eventually(t, func() bool { return acked(server) == 2 }, wait, time.Millisecond)
	require.Empty(t, messages, "each was handled once")
}
