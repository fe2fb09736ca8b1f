package kafka_test

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// shapes are the messages that a service can have on its topics.
func shapes() map[string]*message.Message {
	full := newMessage("", "payload")
	full.Metadata["name"] = "value"
	full.Metadata["empty"] = ""
	full.Metadata["näme"] = "wért"
	nul := newMessage("", "\x00\xff binary")
	return map[string]*message.Message{
		"plain":    newMessage("", "payload"),
		"metadata": full,
		"binary":   nul,
		"empty":    newMessage("", ""),
		"no ID":    message.NewMessage("", []byte("payload")),
		"keyed":    newMessage("key", "payload"),
	}
}

// keyOf is how services on watermill-kafka choose the partition.
func keyOf(_ string, msg *message.Message) (string, error) { return msg.Metadata.Get("key"), nil }

// TestWatermillReadsOurs and TestWeReadWatermills: a service can move from watermill-kafka one process at a time.
func TestWatermillReadsOurs(t *testing.T) {
	t.Parallel()
	for name, unmarshaler := range map[string]wkafka.Unmarshaler{
		"default": wkafka.DefaultMarshaler{}, "partitioning": wkafka.NewWithPartitioningMarshaler(keyOf),
	} {
		for shape, sent := range shapes() {
			t.Run(name+" "+shape, func(t *testing.T) {
				t.Parallel()
				topic := devtest.Topic(t)
				require.NoError(t, batcher(t, connect(t, kafka.Config{Brokers: brokers(t)})).Publish(topic, sent))

				config := wkafka.DefaultSaramaSubscriberConfig()
				config.Consumer.Offsets.Initial = sarama.OffsetOldest
				theirs, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
					Brokers: brokers(t), Unmarshaler: unmarshaler, ConsumerGroup: topic, OverwriteSaramaConfig: config,
				}, watermill.NopLogger{})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, theirs.Close()) })
				messages, err := theirs.Subscribe(t.Context(), topic)
				require.NoError(t, err)
				got := next(t, messages)
				require.Equal(t, sent.UUID, got.UUID)
				require.Equal(t, string(sent.Payload), string(got.Payload))
				want := message.Metadata{}
				for name, value := range sent.Metadata {
					if name != transport.KeyMetadata { // the record has it
						want[name] = value
					}
				}
				require.Equal(t, want, got.Metadata)
				got.Ack()
			})
		}
	}
}

func TestWeReadWatermills(t *testing.T) {
	t.Parallel()
	for name, marshaler := range map[string]wkafka.Marshaler{
		"default": wkafka.DefaultMarshaler{}, "partitioning": wkafka.NewWithPartitioningMarshaler(keyOf),
	} {
		for shape, sent := range shapes() {
			t.Run(name+" "+shape, func(t *testing.T) {
				t.Parallel()
				topic := devtest.Topic(t)
				_, messages := subscribe(t, connect(t, kafka.Config{Brokers: brokers(t)}), topic, transport.SubscriberConfig{Consumer: "c", Ordered: true})
				theirs, err := wkafka.NewPublisher(wkafka.PublisherConfig{Brokers: brokers(t), Marshaler: marshaler}, watermill.NopLogger{})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, theirs.Close()) })
				transport.SetKey(sent, "") // theirs comes from the metadata
				if shape == "keyed" {
					sent.Metadata["key"] = "k"
				}
				require.NoError(t, theirs.Publish(topic, sent))

				got := next(t, messages)
				require.Equal(t, sent.UUID, got.UUID)
				require.Equal(t, string(sent.Payload), string(got.Payload))
				if shape == "keyed" && name == "partitioning" {
					require.Equal(t, "k", transport.Key(got))
					transport.SetKey(got, "")
				}
				require.Equal(t, sent.Metadata, got.Metadata)
				got.Ack()
			})
		}
	}
}
