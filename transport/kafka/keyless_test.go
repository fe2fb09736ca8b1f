package kafka_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport/kafka"
)

// TestKeyless: a call with messages without a key makes a batch for each partition or, where they stick, one.
func TestKeyless(t *testing.T) {
	t.Parallel()
	for keyless, want := range map[kafka.Keyless]int{kafka.InTurn: 4, kafka.Sticky: 1} {
		t.Run(keyless.String(), func(t *testing.T) {
			t.Parallel()
			cluster := fake(t, kfake.SeedTopics(4, "topic"))
			batches := make(chan int, 100)
			cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				batches <- len(r.(*kmsg.ProduceRequest).Topics[0].Partitions)
				return nil, nil, false
			})
			p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs(), Producer: kafka.ProducerConfig{Keyless: keyless}}))
			messages := make([]*message.Message, 40)
			for i := range messages {
				messages[i] = newMessage("", "event")
			}
			requireAll(t, p.PublishBatch(t.Context(), "topic", messages))
			require.Equal(t, want, <-batches)
			require.Empty(t, batches, "one request")
			read(t, cluster.ListenAddrs(), "topic", len(messages))
		})
	}
}

// TestKeylessInTransactions: what handlers publish without a key sticks, too.
func TestKeylessInTransactions(t *testing.T) {
	t.Parallel()
	c := newCopying(t, fake(t).ListenAddrs(), 30)
	p := c.start(t, c.config(kafka.Config{Producer: kafka.ProducerConfig{Keyless: kafka.Sticky}}), func(msg *message.Message, publisher message.Publisher) error {
		return publisher.Publish(c.out, message.NewMessageWithContext(msg.Context(), msg.UUID, msg.Payload))
	})
	c.await(t)
	p.stop(t)
	for _, r := range read(t, c.brokers, c.out, 30) {
		require.Zero(t, r.Partition)
	}
}
