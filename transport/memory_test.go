package transport_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

func newMemory(t testing.TB, config transport.MemoryConfig) *transport.Memory {
	t.Helper()
	m, err := transport.NewMemory(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func publish(t testing.TB, m *transport.Memory, topic string, msgs ...*message.Message) {
	t.Helper()
	p, err := m.Publisher()
	require.NoError(t, err)
	require.NoError(t, p.Publish(topic, msgs...))
}

func subscribe(t testing.TB, m *transport.Memory, topic string, config transport.SubscriberConfig) (message.Subscriber, <-chan *message.Message) {
	t.Helper()
	s, err := m.Subscriber(config)
	require.NoError(t, err)
	messages, err := s.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return s, messages
}

func TestMemoryConfig(t *testing.T) {
	_, err := transport.NewMemory(transport.MemoryConfig{DrainTimeout: -1})
	require.ErrorContains(t, err, "DrainTimeout")
	require.Equal(t, 30*time.Second, transport.MemoryConfig{}.WithDefaults().DrainTimeout)
}

// A group does not get messages that were published before its first subscriber. It gets all later ones, also those published
// while it has no subscriber.
func TestMemoryGroupBeginsWithItsFirstSubscriber(t *testing.T) {
	m := newMemory(t, transport.MemoryConfig{})
	publish(t, m, "topic", newMessage("before", "", ""))
	s, _ := subscribe(t, m, "topic", transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, s.Close())
	publish(t, m, "topic", newMessage("between", "", ""))
	_, messages := subscribe(t, m, "topic", transport.SubscriberConfig{Consumer: "c"})
	msg := <-messages
	require.Equal(t, "between", msg.UUID)
	msg.Ack()
}

func TestMemorySubscribersAgreeOnOrder(t *testing.T) {
	m := newMemory(t, transport.MemoryConfig{})
	subscribe(t, m, "topic", transport.SubscriberConfig{Consumer: "c", Ordered: true})
	s, err := m.Subscriber(transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), "topic")
	require.ErrorContains(t, err, "Ordered")
	_, err = s.Subscribe(t.Context(), "no/topic")
	require.ErrorIs(t, err, transport.ErrLimit)
}

func TestMemoryNackBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, transport.MemoryConfig{})
		_, messages := subscribe(t, m, "topic", transport.SubscriberConfig{Consumer: "c"})
		publish(t, m, "topic", newMessage("1", "", ""))
		last := time.Now()
		var waits []time.Duration
		for range 10 {
			msg := <-messages
			waits = append(waits, time.Since(last))
			last = time.Now()
			msg.Nack()
		}
		ms := time.Millisecond
		require.Equal(t, []time.Duration{0, 10 * ms, 20 * ms, 40 * ms, 80 * ms, 160 * ms, 320 * ms, 640 * ms, 1000 * ms, 1000 * ms}, waits)

		msg := <-messages
		require.Equal(t, 11, transport.DeliveryFrom(msg.Context()).Attempt())
		transport.DeliveryFrom(msg.Context()).RetryAfter(time.Minute)
		last = time.Now()
		msg.Nack()
		(<-messages).Ack()
		require.Equal(t, time.Minute, time.Since(last))
	})
}

func TestMemoryDrainTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, transport.MemoryConfig{DrainTimeout: 7 * time.Second})
		s, messages := subscribe(t, m, "topic", transport.SubscriberConfig{Consumer: "c"})
		publish(t, m, "topic", newMessage("1", "", ""))
		msg := <-messages
		began := time.Now()
		require.NoError(t, s.Close())
		require.Equal(t, 7*time.Second, time.Since(began))
		require.Error(t, msg.Context().Err())
		msg.Ack() // too late

		_, again := subscribe(t, m, "topic", transport.SubscriberConfig{Consumer: "c"})
		msg = <-again
		require.Equal(t, 2, transport.DeliveryFrom(msg.Context()).Attempt())
		msg.Ack()
	})
}
