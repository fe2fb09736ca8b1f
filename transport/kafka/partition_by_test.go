package kafka_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestPartitionBy: a function of the service chooses the partitions of keys. A partition that is not there is an error of the message, and
// of no other.
func TestPartitionBy(t *testing.T) {
	t.Parallel()
	for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
		t.Run(delivery.String(), func(t *testing.T) {
			t.Parallel()
			addresses, in, out := brokers(t), devtest.Topic(t)+"-in", devtest.Topic(t)+"-out"
			requireAll(t, batcher(t, connect(t, kafka.Config{Brokers: addresses})).PublishBatch(t.Context(), in, []*message.Message{newMessage("", "")}))
			byLength := func(topic, key string, _ int) int {
				if topic != out {
					return -1
				}
				return len(key)
			}
			tr := connect(t, kafka.Config{Brokers: addresses, Delivery: delivery, Producer: kafka.ProducerConfig{PartitionBy: byLength}})
			_, messages := subscribe(t, tr, in, transport.SubscriberConfig{Consumer: consumerName(t)})
			msg := next(t, messages)
			publisher, err := tr.Publisher()
			require.NoError(t, err)
			publish := func(key string) error {
				event := message.NewMessageWithContext(msg.Context(), key, nil)
				transport.SetKey(event, key)
				return publisher.Publish(out, event)
			}
			require.NoError(t, publish("k"))
			require.NoError(t, publish("key"))
			err = publish("much too long")
			require.ErrorIs(t, err, transport.ErrRejected)
			require.ErrorContains(t, err, "PartitionBy chose partition 13 of topic "+out+": want 0 to 3")
			msg.Ack()
			for _, r := range read(t, addresses, out, 2) {
				require.Len(t, r.Key, int(r.Partition))
			}
		})
	}
}
