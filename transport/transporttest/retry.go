package transporttest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

func redelivery(e *env) {
	messages := e.subscribe(transport.SubscriberConfig{Consumer: "c"})
	published := newMessage("", "x")
	e.publish(published)
	before := 0
	began := time.Now()
	for range 4 {
		msg := e.next(messages)
		require.Equal(e, published.UUID, msg.UUID)
		attempt := transport.DeliveryFrom(msg.Context()).Attempt()
		if e.transport.Features().Attempts {
			require.Equal(e, before+1, attempt)
			before = attempt
		} else {
			require.GreaterOrEqual(e, attempt, 0)
		}
		msg.Nack()
	}
	require.Greater(e, time.Since(began), 20*time.Millisecond, "a nack without a delay is a hot loop")
	e.next(messages).Ack()
}

func retryAfter(e *env) {
	messages := e.subscribe(transport.SubscriberConfig{Consumer: "c"})
	e.publish(newMessage("", "x"))
	const delay = 1500 * time.Millisecond
	msg := e.next(messages)
	transport.DeliveryFrom(msg.Context()).RetryAfter(delay)
	nacked := time.Now()
	msg.Nack()
	msg = e.next(messages)
	require.GreaterOrEqual(e, time.Since(nacked), delay)
	// The wish was for that delivery only.
	nacked = time.Now()
	msg.Nack()
	e.next(messages).Ack()
	require.Less(e, time.Since(nacked), delay)
}

func retryAfterWorker(e *env) {
	messages := e.subscribe(transport.SubscriberConfig{Consumer: "c", Concurrency: 1})
	e.publish(newMessage("", "late"))
	late := e.next(messages)
	transport.DeliveryFrom(late.Context()).RetryAfter(time.Hour)
	late.Nack()
	for range 3 {
		e.publish(newMessage("", "next"))
		msg := e.next(messages)
		require.Equal(e, "next", string(msg.Payload))
		msg.Ack()
	}
}
