package main

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// subscribed returns a source and what it delivers.
func subscribed(t *testing.T, f flow) (*source, <-chan *message.Message) {
	s := newSource(f)
	ctx, cancel := context.WithCancel(t.Context())
	messages, err := s.Subscribe(ctx, topic)
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, s.Close())
	})
	return s, messages
}

// noMessage waits long enough for a message that must not come.
func noMessage(t *testing.T, messages <-chan *message.Message) {
	select {
	case <-messages:
		assert.Fail(t, "a message more than there should be")
	case <-time.After(30 * time.Millisecond):
	}
}

func TestSourceBoundsWhatIsInFlight(t *testing.T) {
	t.Parallel()
	s, messages := subscribed(t, flow{inFlight: 2})
	first, second := <-messages, <-messages
	assert.NotEqual(t, first.UUID, second.UUID)
	assert.NotEqual(t, string(first.Payload), string(second.Payload))
	noMessage(t, messages)
	second.Ack()
	third := <-messages
	first.Ack()
	third.Ack()
	fourth := <-messages
	s.stop()
	fourth.Ack()
	for msg := range messages { // one may have been on its way
		msg.Ack()
	}
	<-s.drained
	assert.Equal(t, s.delivered.Load(), s.acked.Load())
	assert.GreaterOrEqual(t, s.acked.Load(), int64(4))
}

func TestSourceDeliversAgainAfterTheDelay(t *testing.T) {
	t.Parallel()
	s, messages := subscribed(t, flow{inFlight: 1, events: 2})
	msg := <-messages
	d := transport.DeliveryFrom(msg.Context())
	assert.Equal(t, 1, d.Attempt())
	const delay = 50 * time.Millisecond
	d.RetryAfter(delay)
	began := time.Now()
	msg.Nack()
	(<-messages).Ack() // the slot is free meanwhile
	again := <-messages
	assert.GreaterOrEqual(t, time.Since(began), delay)
	assert.Equal(t, msg.UUID, again.UUID)
	assert.Equal(t, 2, transport.DeliveryFrom(again.Context()).Attempt())
	again.Ack()
	_, more := <-messages
	assert.False(t, more, "it ends when all are acked")
	assert.Equal(t, int64(2), s.acked.Load())
	assert.Equal(t, int64(1), s.nacked.Load())
}

func TestSourceDeliversEverySecondEventTwice(t *testing.T) {
	t.Parallel()
	s, messages := subscribed(t, flow{inFlight: 8, twice: true, events: 4})
	copies := map[string]int{}
	for range 6 {
		msg := <-messages
		copies[msg.UUID]++
		msg.Ack()
	}
	_, more := <-messages
	assert.False(t, more)
	assert.Len(t, copies, 4)
	assert.Equal(t, int64(4), s.acked.Load(), "a second copy does not count")
}

func TestSourceMovesOnWhenTheEventIsHandled(t *testing.T) {
	t.Parallel()
	s, messages := subscribed(t, flow{inFlight: 8, ordered: true, events: 3})
	first := <-messages
	noMessage(t, messages)
	transport.DeliveryFrom(first.Context()).Handled()
	second := <-messages
	noMessage(t, messages)
	second.Ack()
	(<-messages).Ack()
	assert.Equal(t, int64(3), s.delivered.Load())
	first.Ack()
	<-s.drained
	assert.Equal(t, int64(3), s.acked.Load())
}

// An interrupted run does not wait for handlers that never end.
func TestSourceEndsWithItsSubscription(t *testing.T) {
	t.Parallel()
	s := newSource(flow{inFlight: 2})
	ctx, cancel := context.WithCancel(t.Context())
	messages, err := s.Subscribe(ctx, topic)
	require.NoError(t, err)
	<-messages
	cancel()
	require.NoError(t, s.Close())
}
