package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

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

				theirs := watermillMember(t, brokers(t), topic, unmarshaler)
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

// TestContextOfWatermillKafka: a handler that calls watermill-kafka's functions finds there what watermill-kafka says of the same
// record.
func TestContextOfWatermillKafka(t *testing.T) {
	t.Parallel()
	type found struct {
		partition     int32
		offset, stamp int64
		key           string
		all           bool
	}
	find := func(ctx context.Context) (f found) {
		var in [4]bool
		var stamp time.Time
		var key []byte
		f.partition, in[0] = wkafka.MessagePartitionFromCtx(ctx)
		f.offset, in[1] = wkafka.MessagePartitionOffsetFromCtx(ctx)
		stamp, in[2] = wkafka.MessageTimestampFromCtx(ctx)
		key, in[3] = wkafka.MessageKeyFromCtx(ctx)
		f.stamp, f.key, f.all = stamp.UnixMilli(), string(key), in == [4]bool{true, true, true, true}
		return f
	}
	for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
		t.Run(delivery.String(), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3)
			c.put(2, "0", "1")
			for _, key := range []string{"key", ""} {
				record := &kgo.Record{Topic: c.topic, Partition: 2, Timestamp: time.UnixMilli(1700000000123), Value: []byte("event")}
				if key != "" {
					record.Key = []byte(key)
				}
				require.NoError(t, c.kgo.ProduceSync(t.Context(), record).FirstErr())
			}
			_, ours := c.join(kafka.Config{Delivery: delivery})
			messages, err := watermillMember(t, c.ListenAddrs(), "theirs", wkafka.DefaultMarshaler{}).Subscribe(t.Context(), c.topic)
			require.NoError(t, err)
			for i := range int64(4) {
				their := next(t, messages)
				theirs := find(their.Context())
				their.Ack()
				require.True(t, theirs.all)
				require.Equal(t, i, theirs.offset)
				our := next(t, ours)
				require.Equal(t, theirs, find(our.Context()))
				require.Equal(t, theirs, find(context.WithoutCancel(our.Context())), "in a context that was derived")
				our.Ack()
			}
		})
	}
	require.Equal(t, found{stamp: time.Time{}.UnixMilli()}, find(t.Context()), "in no message's context")
}

// watermillMember is a subscriber of watermill-kafka, as it comes, that begins at the oldest message and learns of rebalances soon.
func watermillMember(t testing.TB, addresses []string, group string, unmarshaler wkafka.Unmarshaler) *wkafka.Subscriber {
	t.Helper()
	config := wkafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	s, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers: addresses, Unmarshaler: unmarshaler, ConsumerGroup: group, OverwriteSaramaConfig: config,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}
