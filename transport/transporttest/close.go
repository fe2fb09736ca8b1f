package transporttest

import (
	"context"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

type contextKey struct{}

// closeDrains: a handler that runs while its subscriber closes finishes, and its ack counts.
func closeDrains(e *env) {
	config := transport.SubscriberConfig{Consumer: "c", Concurrency: 1}
	s := e.consumer(config)
	messages := e.messages(s)
	e.publish(newMessage("", "1"))
	msg := e.next(messages)

	second := e.consumerOf(e.factory(e.T), config) // which may take longer than the handler
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = s.Close()
	}()
	handled := make(chan struct{})
	go func() {
		defer close(handled)
		select {
		case <-closed:
			assert.Fail(e, "Close returned while a handler ran")
		case <-time.After(300 * time.Millisecond):
		}
		assert.NoError(e, msg.Context().Err(), "the handler's context ended before the drain timeout")
		assert.True(e, msg.Ack())
	}()
	other := e.messages(second)
	e.done(handled, "the handler")
	e.done(closed, "Close")
	require.Error(e, msg.Context().Err())
	_, open := <-messages
	require.False(e, open)
	e.nothing(other, 1500*time.Millisecond)
}

// drainTakesNothing: while a subscriber drains, what is published goes to the others, as in a rolling deployment.
func drainTakesNothing(e *env) {
	config := transport.SubscriberConfig{Consumer: "c", Concurrency: 5}
	s := e.consumer(config)
	messages := e.messages(s)
	e.publish(newMessage("", "held"))
	held := e.next(messages)
	require.Equal(e, "held", string(held.Payload))
	other := e.messages(e.consumerOf(e.factory(e.T), config))
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = s.Close()
	}()
	_, open := <-messages // intake has ended
	require.False(e, open)
	for range 10 { // the broker may have been sending while the intake ended: these need not come soon
		e.publish(newMessage("", "probe"))
	}
	began := time.Now()
	const n = 100
	e.publishNumbers(n)
	for got := map[string]bool{}; len(got) < n; {
		msg := e.next(other)
		if string(msg.Payload) != "probe" {
			got[string(msg.Payload)] = true
		}
		msg.Ack()
	}
	require.Less(e, time.Since(began), 8*time.Second, "messages went to the draining subscriber")
	held.Ack()
	e.done(closed, "Close")
}

// contextDrains: ending Subscribe's context stops the intake and nothing else.
func contextDrains(e *env) {
	s := e.consumer(transport.SubscriberConfig{Consumer: "c"})
	ctx, cancel := context.WithCancel(context.WithValue(e.Context(), contextKey{}, "value"))
	defer cancel()
	messages, err := s.Subscribe(ctx, e.topic)
	require.NoError(e, err)
	e.publish(newMessage("", "1"))
	msg := e.next(messages)
	require.Equal(e, "value", msg.Context().Value(contextKey{}))
	cancel()
	e.nothing(messages, 200*time.Millisecond)
	require.NoError(e, msg.Context().Err())
	msg.Ack()
	e.done(msg.Context().Done(), "the message's context to end with its ack")
	select {
	case _, open := <-messages:
		require.False(e, open)
	case <-time.After(e.wait):
		require.Fail(e, "the channel stayed open")
	}

	// The subscriber is not closed by it.
	again := e.messages(s)
	e.publish(newMessage("", "2"))
	msg = e.next(again)
	require.Equal(e, "2", string(msg.Payload))
	msg.Ack()
}

// closeReturns: what no handler has got, or what a handler has nacked, reaches the consumer's next subscriber.
func closeReturns(e *env) {
	config := transport.SubscriberConfig{Consumer: "c", Concurrency: 2}
	s := e.consumer(config)
	messages := e.messages(s)
	e.publishNumbers(20)
	e.next(messages).Ack()
	e.next(messages).Nack()
	require.NoError(e, s.Close())
	got := e.collect(19, e.messages(e.consumerOf(e.factory(e.T), config)))
	require.Len(e, got, 19)
}

func closedRefuses(e *env) {
	p := e.publisher()
	s := e.consumer(transport.SubscriberConfig{Consumer: "c"})
	messages := e.messages(s)
	require.NoError(e, e.transport.Close())
	require.NoError(e, e.transport.Close())
	_, open := <-messages
	require.False(e, open)
	require.ErrorIs(e, p.Publish(e.topic, newMessage("", "x")), transport.ErrClosed)
	_, err := s.Subscribe(e.Context(), e.topic)
	require.ErrorIs(e, err, transport.ErrClosed)
	_, err = e.transport.Publisher()
	require.ErrorIs(e, err, transport.ErrClosed)
	_, err = e.transport.Subscriber(transport.SubscriberConfig{Consumer: "c"})
	require.ErrorIs(e, err, transport.ErrClosed)
}
