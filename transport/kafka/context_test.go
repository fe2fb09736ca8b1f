package kafka_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// Watermill's router gives each message another context as soon as it has it. The subscriber looked at the message's
// context only then, and got half of each: a panic once in some 100,000 messages.
func TestHandlersMayReplaceTheContext(t *testing.T) {
	t.Parallel()
	tr := connect(t, kafka.Config{Brokers: fake(t).ListenAddrs()})
	const messages = 100
	p := batcher(t, tr)
	for range messages {
		require.NoError(t, p.Publish("contexts", newMessage("", "payload")))
	}
	s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "c", Concurrency: messages})
	require.NoError(t, err)
	received, err := s.Subscribe(t.Context(), "contexts")
	require.NoError(t, err)
	var handlers sync.WaitGroup
	for range messages {
		msg := <-received
		ctx := msg.Context()
		msg.SetContext(context.WithoutCancel(ctx))
		require.NoError(t, ctx.Err())
		handlers.Go(func() {
			msg.Ack()
			<-ctx.Done()
		})
	}
	handlers.Wait()
}
