package kafka_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

var _ wkafka.MarshalerUnmarshaler = kafka.Marshaler{}

// relayed publishes n events of each key through an outbox, its relay and watermill-kafka's publisher, and returns the topic of
// four partitions that they are in.
func relayed(t *testing.T, marshaler wkafka.Marshaler, keys []string, n int) (topic string) {
	t.Helper()
	pool, schema, topic := devtest.Pool(t), devtest.Schema(t), devtest.Topic(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers(t)...))
	require.NoError(t, err)
	defer client.Close()
	_, err = kadm.NewClient(client).CreateTopic(t.Context(), 4, 1, nil, topic)
	require.NoError(t, err)
	publisher, err := wkafka.NewPublisher(wkafka.PublisherConfig{Brokers: brokers(t), Marshaler: marshaler}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	require.NoError(t, err)
	for i := range n {
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
			for _, key := range keys {
				msg := message.NewMessageWithContext(ctx, outbox.NewID(), fmt.Append(nil, i))
				transport.SetKey(msg, key)
				msg.Metadata.Set("name", "value")
				if err := events.Publish(topic, msg); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	relay, err := outbox.NewRelay(pool, publisher, outbox.RelayConfig{Schema: schema})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	return topic
}

// TestEmptyRecordKeyIsNotWrittenByOurMarshaler: with Marshaler, watermill-kafka's publisher keeps the key and the order of each key.
func TestEmptyRecordKeyIsNotWrittenByOurMarshaler(t *testing.T) {
	t.Parallel()
	const n = 50
	keys := []string{"a", "b", "c", "d", "e"}
	topic := relayed(t, kafka.Marshaler{}, keys, n)
	partitions := map[int32]bool{}
	for _, r := range read(t, brokers(t), topic, n*len(keys)) {
		require.NotEmpty(t, r.Key)
		partitions[r.Partition] = true
	}
	require.Greater(t, len(partitions), 1, "the keys are spread")

	_, messages := subscribe(t, connect(t, kafka.Config{Brokers: brokers(t)}), topic, transport.SubscriberConfig{Consumer: "c", Ordered: true})
	got := map[string][]string{}
	for range n * len(keys) {
		msg := next(t, messages)
		require.Equal(t, message.Metadata{transport.KeyMetadata: transport.Key(msg), "name": "value"}, msg.Metadata)
		got[transport.Key(msg)] = append(got[transport.Key(msg)], string(msg.Payload))
		msg.Ack()
	}
	for _, key := range keys {
		require.Len(t, got[key], n)
		for i, payload := range got[key] {
			require.Equal(t, fmt.Sprint(i), payload, "key %s", key)
		}
	}
}

// TestEmptyRecordKeyOfTheDefaultMarshaler is the control: watermill-kafka's own marshaler spreads the events of one key over the
// partitions, where no consumer can keep their order.
func TestEmptyRecordKeyOfTheDefaultMarshaler(t *testing.T) {
	t.Parallel()
	topic := relayed(t, wkafka.DefaultMarshaler{}, []string{"a"}, 50)
	partitions := map[int32]bool{}
	for _, r := range read(t, brokers(t), topic, 50) {
		require.Empty(t, r.Key)
		partitions[r.Partition] = true
	}
	require.Greater(t, len(partitions), 1)
}

// TestEmptyRecordKeyOfAMessageWithoutOne is null on the wire, and what cannot travel is refused.
func TestEmptyRecordKeyOfAMessageWithoutOne(t *testing.T) {
	t.Parallel()
	for shape, msg := range shapes() {
		sent, err := kafka.Marshaler{}.Marshal("topic", msg)
		require.NoError(t, err, shape)
		record := &sarama.ConsumerMessage{Topic: sent.Topic}
		if shape == "keyed" {
			record.Key, err = sent.Key.Encode()
			require.NoError(t, err)
		} else {
			require.Nil(t, sent.Key, shape)
		}
		record.Value, err = sent.Value.Encode()
		require.NoError(t, err)
		require.NotNil(t, record.Value, "null would be a tombstone")
		for i := range sent.Headers {
			record.Headers = append(record.Headers, &sent.Headers[i])
		}
		got, err := kafka.Marshaler{}.Unmarshal(record)
		require.NoError(t, err)
		require.Equal(t, msg.UUID, got.UUID, shape)
		require.Equal(t, msg.Metadata, got.Metadata, shape)
		require.Equal(t, string(msg.Payload), string(got.Payload), shape)
	}
	bad := newMessage("", "")
	bad.Metadata["_watermill_message_uuid"] = "x"
	_, err := kafka.Marshaler{}.Marshal("topic", bad)
	require.ErrorIs(t, err, transport.ErrLimit)
}
