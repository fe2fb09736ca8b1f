package kafka_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// requireTombstones requires records of the key with null values, and others that are empty.
func requireTombstones(t *testing.T, addresses []string, topic string) {
	t.Helper()
	for _, record := range read(t, addresses, topic, 2) {
		if string(record.Key) == "deleted" {
			require.Nil(t, record.Value, "null deletes a key in a compacted topic, and an empty value does not")
		} else {
			require.NotNil(t, record.Value)
			require.Empty(t, record.Value)
		}
	}
}

// TestTombstone: a record without a value is one in each place that it is sent to.
func TestTombstone(t *testing.T) {
	t.Parallel()
	addresses := brokers(t)
	input := func(t *testing.T) string {
		t.Helper()
		client, err := kgo.NewClient(kgo.SeedBrokers(addresses...), kgo.AllowAutoTopicCreation())
		require.NoError(t, err)
		defer client.Close()
		topic := devtest.Topic(t)
		require.NoError(t, client.ProduceSync(t.Context(),
			&kgo.Record{Topic: topic, Key: []byte("deleted")}, &kgo.Record{Topic: topic, Key: []byte("empty"), Value: []byte{}}).FirstErr())
		return topic
	}
	consume := func(t *testing.T, config kafka.Config, topic string, handle func(*kafka.Transport, *message.Message)) *kafka.Transport {
		t.Helper()
		config.Brokers = addresses
		tr := connect(t, config)
		_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: consumerName(t)})
		for range 2 {
			msg := next(t, messages)
			require.Equal(t, transport.Key(msg) == "deleted", msg.Payload == nil)
			handle(tr, msg)
		}
		return tr
	}
	ack := func(_ *kafka.Transport, msg *message.Message) { msg.Ack() }
	t.Run("consumed", func(t *testing.T) {
		t.Parallel()
		consume(t, kafka.Config{}, input(t), ack)
	})
	t.Run("published", func(t *testing.T) {
		t.Parallel()
		topic := devtest.Topic(t)
		empty, deleted := newMessage("empty", ""), message.NewMessage(watermill.NewUUID(), nil)
		transport.SetKey(deleted, "deleted")
		requireAll(t, batcher(t, connect(t, kafka.Config{Brokers: addresses})).PublishBatch(t.Context(), topic, []*message.Message{empty, deleted}))
		requireTombstones(t, addresses, topic)
	})
	t.Run("copied", func(t *testing.T) {
		t.Parallel()
		for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
			out := devtest.Topic(t)
			tr := consume(t, kafka.Config{Delivery: delivery}, input(t), func(tr *kafka.Transport, msg *message.Message) {
				publisher, err := tr.Publisher()
				require.NoError(t, err)
				copied := msg.Copy()
				copied.SetContext(msg.Context())
				require.NoError(t, publisher.Publish(out, copied))
				msg.Ack()
			})
			require.NoError(t, tr.Close())
			requireTombstones(t, addresses, out)
		}
	})
	t.Run("dead-lettered", func(t *testing.T) {
		t.Parallel()
		for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
			dead := devtest.Topic(t)
			config := buries(dead, 1)
			config.Delivery = delivery
			consume(t, config, input(t), func(_ *kafka.Transport, msg *message.Message) { msg.Nack() })
			requireTombstones(t, addresses, dead)
		}
	})
}
