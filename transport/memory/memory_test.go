package memory_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

func newMemory(t testing.TB, config memory.Config) *memory.Transport {
	t.Helper()
	m, err := memory.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func publish(t testing.TB, m *memory.Transport, topic string, msgs ...*message.Message) {
	t.Helper()
	p, err := m.Publisher()
	require.NoError(t, err)
	require.NoError(t, p.Publish(topic, msgs...))
}

func subscribe(t testing.TB, m *memory.Transport, topic string, config transport.SubscriberConfig) (message.Subscriber, <-chan *message.Message) {
	t.Helper()
	s, err := m.Subscriber(config)
	require.NoError(t, err)
	messages, err := s.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return s, messages
}

func TestConfig(t *testing.T) {
	_, err := memory.New(memory.Config{DrainTimeout: -1})
	require.ErrorContains(t, err, "DrainTimeout")
	require.Equal(t, 30*time.Second, memory.Config{}.WithDefaults().DrainTimeout)
}

// A group does not get messages that were published before its first subscriber. It gets all later ones, also those published
// while it has no subscriber.
func TestGroupBeginsWithItsFirstSubscriber(t *testing.T) {
	m := newMemory(t, memory.Config{})
	publish(t, m, "topic", message.NewMessage("before", nil))
	s, _ := subscribe(t, m, "topic", transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, s.Close())
	publish(t, m, "topic", message.NewMessage("between", nil))
	_, messages := subscribe(t, m, "topic", transport.SubscriberConfig{Consumer: "c"})
	msg := <-messages
	require.Equal(t, "between", msg.UUID)
	msg.Ack()
}

func TestSubscribersAgreeOnOrder(t *testing.T) {
	m := newMemory(t, memory.Config{})
	subscribe(t, m, "topic", transport.SubscriberConfig{Consumer: "c", Ordered: true})
	s, err := m.Subscriber(transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), "topic")
	require.ErrorContains(t, err, "Ordered")
	_, err = s.Subscribe(t.Context(), "no/topic")
	require.ErrorIs(t, err, transport.ErrLimit)
}

func TestNackBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, memory.Config{})
		_, messages := subscribe(t, m, "topic", transport.SubscriberConfig{Consumer: "c"})
		publish(t, m, "topic", message.NewMessage("1", nil))
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

func TestDrainTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, memory.Config{DrainTimeout: 7 * time.Second})
		s, messages := subscribe(t, m, "topic", transport.SubscriberConfig{Consumer: "c"})
		publish(t, m, "topic", message.NewMessage("1", nil))
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

// A rejected message becomes a dead letter, which is kept although nobody has subscribed to the dead-letter topic.
func TestReject(t *testing.T) {
	t.Parallel()
	m := newMemory(t, memory.Config{})
	_, messages := subscribe(t, m, "orders", transport.SubscriberConfig{Consumer: "notify", Ordered: true})
	first, second := message.NewMessage("1", []byte("?")), message.NewMessage("2", []byte("{}"))
	for _, msg := range []*message.Message{first, second} {
		transport.SetKey(msg, "k")
	}
	publish(t, m, "orders", first, second)
	msg := <-messages
	transport.DeliveryFrom(msg.Context()).Reject(errors.New("not JSON"))
	transport.DeliveryFrom(msg.Context()).RetryAfter(time.Hour)
	msg.Nack()
	msg = <-messages
	require.Equal(t, "2", msg.UUID, "its key goes on")
	msg.Ack()
	_, deads := subscribe(t, m, "orders.notify.dead-letters", transport.SubscriberConfig{Consumer: "dead-letters"})
	msg = <-deads
	require.Equal(t, "1", msg.UUID)
	require.Equal(t, message.Metadata{"_millrace_key": "k", "millrace_dead_reason": "rejected", "millrace_dead_error": "not JSON"}, msg.Metadata)
	msg.Ack()
}

// The in-memory transport refuses a pattern, because no event would ever be published to a topic with that name.
func TestRefusesAPattern(t *testing.T) {
	t.Parallel()
	s, err := newMemory(t, memory.Config{}).Subscriber(transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), "^orders")
	require.ErrorIs(t, err, transport.ErrLimit)
	require.ErrorContains(t, err, "begins with ^")
}

// A driver that cannot open a transport returns none, and no nil pointer that a caller would take for one.
func TestDriverReturnsNoTransportWithAnError(t *testing.T) {
	t.Parallel()
	opened, err := memory.Driver.Settings().Open(t.Context(), transport.Environment{DrainTimeout: -1})
	require.ErrorContains(t, err, "DrainTimeout")
	if opened != nil { // testify's Nil also accepts a nil pointer
		t.Errorf("got %T", opened)
	}
}
