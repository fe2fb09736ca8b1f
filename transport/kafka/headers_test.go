package kafka_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestRepeatedHeaders: a record may have several headers of one name. All but the last were lost, without notice.
func TestRepeatedHeaders(t *testing.T) {
	t.Parallel()
	headers := []kgo.RecordHeader{
		{Key: "hop", Value: []byte("a")}, {Key: "name", Value: []byte("value")}, {Key: "hop", Value: []byte("\xff")}, {Key: "hop", Value: []byte("b")},
	}
	for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
		t.Run(delivery.String(), func(t *testing.T) {
			t.Parallel()
			topic, dead, copies := devtest.Topic(t), devtest.Topic(t)+"-dead", devtest.Topic(t)+"-copies"
			config := buries(dead, 1)
			config.Brokers, config.Delivery = brokers(t), delivery
			tr := connect(t, config)
			_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: consumerName(t), Ordered: true})
			client, err := kgo.NewClient(kgo.SeedBrokers(config.Brokers...), kgo.DefaultProduceTopic(topic))
			require.NoError(t, err)
			t.Cleanup(client.Close)
			require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Key: []byte("k"), Headers: headers}, &kgo.Record{Key: []byte("k"), Headers: headers}).FirstErr())

			next(t, messages).Nack()
			msg := next(t, messages)
			require.Equal(t, message.Metadata{transport.KeyMetadata: "k", "name": "value", "hop": "b"}, msg.Metadata)
			got := kafka.HeadersFrom(msg.Context())
			require.Len(t, got, len(headers))
			for i, h := range got {
				require.Equal(t, kgo.RecordHeader{Key: h.Name, Value: h.Value}, headers[i])
			}
			publisher, err := tr.Publisher()
			require.NoError(t, err)
			out := message.NewMessage("copied", nil)
			out.Metadata = message.Metadata{"hop": "b", "more": "m"}
			out.SetContext(kafka.WithHeaders(msg.Context(), got...))
			require.NoError(t, publisher.Publish(copies, out))
			msg.Ack()

			id := func(id string) kgo.RecordHeader {
				return kgo.RecordHeader{Key: "_watermill_message_uuid", Value: []byte(id)}
			}
			require.Equal(t, append(append([]kgo.RecordHeader{id("copied")}, headers...), kgo.RecordHeader{Key: "more", Value: []byte("m")}), read(t, config.Brokers, copies, 1)[0].Headers)
			var hops []string
			for _, h := range read(t, config.Brokers, dead, 1)[0].Headers {
				if h.Key == "hop" {
					hops = append(hops, string(h.Value))
				}
			}
			require.Equal(t, []string{"a", "\xff", "b"}, hops)
		})
	}
	require.Nil(t, kafka.HeadersFrom(t.Context()))
}
