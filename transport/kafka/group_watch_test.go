package kafka_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// waiting waits until so many messages lie there for handlers.
func waiting(t testing.TB, messages <-chan *message.Message, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return len(messages) == n }, wait, time.Millisecond, "%d messages for handlers", n)
}

func numbers(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(prefix, i)
	}
	return all
}

// TestCloseTakesBack: nobody waits for handlers of messages that no handler has got, and nobody gets them any more.
func TestCloseTakesBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.put(0, numbers("0.", 4)...)
	c.put(1, numbers("1.", 4)...)
	tr, messages := c.join(kafka.Config{DrainTimeout: time.Hour})
	waiting(t, messages, 8)
	done := next(t, messages)
	done.Ack()
	require.NoError(t, tr.Close())
	require.Empty(t, messages)
	c.committed(int32(done.UUID[0]-'0'), 1)
	_, second := c.join(kafka.Config{})
	for range 7 {
		msg := next(t, second)
		require.NotEqual(t, done.UUID, msg.UUID)
		msg.Ack()
	}
	c.committed(0, 4)
	c.committed(1, 4)
}

// TestRebalanceTakesBack: what lies there for handlers goes with its partition, and comes again with it as if it had not been
// there.
func TestRebalanceTakesBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.put(0, numbers("0.", 4)...)
	c.put(1, numbers("1.", 4)...)
	_, first := c.join(kafka.Config{})
	waiting(t, first, 8)
	tr, second := c.join(kafka.Config{})
	waiting(t, second, 4)
	waiting(t, first, 4)
	require.NoError(t, tr.Close())
	waiting(t, first, 8)
	following := map[byte]int{}
	for range 8 {
		msg := next(t, first)
		require.Equal(t, 1, transport.DeliveryFrom(msg.Context()).Attempt())
		partition := msg.UUID[0]
		require.Equal(t, fmt.Sprintf("%c.%d", partition, following[partition]), msg.UUID)
		following[partition]++
		msg.Ack()
	}
	c.committed(0, 4)
	c.committed(1, 4)
}

// TestSlowHandler: the acks behind that of a slow handler are seen, and what they make room for is delivered.
func TestSlowHandler(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.put(0, numbers("", 200)...)
	_, messages := c.join(kafka.Config{})
	slow := next(t, messages)
	for range 199 {
		next(t, messages).Ack()
	}
	require.Zero(t, c.offset(0))
	slow.Ack()
	c.committed(0, 200)
}

// TestHandledTooLate: after a nack the next one of the key waits, also when nobody has seen the nack yet.
func TestHandledTooLate(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	for _, payload := range []string{"first", "second"} {
		require.NoError(t, c.kgo.ProduceSync(t.Context(), &kgo.Record{Topic: c.topic, Key: []byte("k"), Value: []byte(payload)}).FirstErr())
	}
	tr := connect(t, kafka.Config{Brokers: c.ListenAddrs()})
	_, messages := subscribe(t, tr, c.topic, transport.SubscriberConfig{Consumer: "c", Ordered: true})
	for range 20 {
		msg := next(t, messages)
		require.Equal(t, "first", string(msg.Payload))
		d := transport.DeliveryFrom(msg.Context())
		d.RetryAfter(10 * time.Millisecond)
		msg.Nack()
		d.Handled()
	}
}
