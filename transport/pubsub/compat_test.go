package pubsub_test

import (
	"maps"
	"testing"

	gcp "cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-googlecloud/v2/pkg/googlecloud"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestWatermillReadsOurs and TestWeReadWatermills: a service can move from watermill-googlecloud one process at a time.
func TestWatermillReadsOurs(t *testing.T) {
	t.Parallel()
	options := emulator(t)
	topic := devtest.Topic(t)
	messages := theirSubscriber(t, options, topic)
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: options}))
	for _, sent := range compatible() {
		require.NoError(t, p.Publish(topic, sent))
		got := next(t, messages)
		require.Equal(t, sent.UUID, got.UUID)
		require.Equal(t, string(sent.Payload), string(got.Payload))
		require.Equal(t, transport.Key(sent), got.Metadata["key"], "as the ordering key")
		want := maps.Clone(sent.Metadata)
		delete(want, transport.KeyMetadata)
		for _, theirs := range []string{"key", "publishTime", googlecloud.GoogleMessageIDHeaderKey} {
			delete(got.Metadata, theirs)
		}
		require.Equal(t, want, got.Metadata)
		got.Ack()
	}
}

func TestWeReadWatermills(t *testing.T) {
	t.Parallel()
	options := emulator(t)
	topic := devtest.Topic(t)
	_, messages := subscribe(t, connect(t, pubsub.Config{ClientOptions: options}), topic, transport.SubscriberConfig{Consumer: "ours"})
	theirs, err := googlecloud.NewPublisher(googlecloud.PublisherConfig{
		ProjectID:             project,
		ClientOptions:         options,
		EnableMessageOrdering: true,
		Marshaler:             keyMarshaler{},
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, theirs.Close()) })
	for _, sent := range compatible() {
		metadata := maps.Clone(sent.Metadata) // to which their publisher adds
		require.NoError(t, theirs.Publish(topic, sent))
		got := next(t, messages)
		require.Equal(t, sent.UUID, got.UUID)
		require.Equal(t, string(sent.Payload), string(got.Payload))
		require.Equal(t, metadata, got.Metadata)
		got.Ack()
	}
}

// TestNothingIsAddedOnTheWay: a message that is published again as it was received travels as it did before, without
// what Pub/Sub, Google's client or this package know of its first journey.
func TestNothingIsAddedOnTheWay(t *testing.T) {
	t.Parallel()
	server, options := fake(t)
	tr := connect(t, pubsub.Config{ClientOptions: options})
	first, second := devtest.Topic(t), devtest.Topic(t)
	_, messages := subscribe(t, tr, first, transport.SubscriberConfig{Consumer: "c"})
	raw := rawClient(t, options).Publisher(first)
	raw.EnableMessageOrdering = true
	defer raw.Stop()
	attributes := map[string]string{"_watermill_message_uuid": "id", "name": "value"}
	traced := maps.Clone(attributes)
	traced["googclient_traceparent"] = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	_, err := raw.Publish(t.Context(), &gcp.Message{Data: []byte("payload"), Attributes: traced, OrderingKey: "key"}).Get(t.Context())
	require.NoError(t, err)

	got := next(t, messages)
	require.NoError(t, batcher(t, tr).Publish(second, got))
	got.Ack()
	sent := server.Messages()
	require.Len(t, sent, 2)
	require.Equal(t, attributes, sent[1].Attributes)
	require.Equal(t, "key", sent[1].OrderingKey)
	require.Equal(t, "payload", string(sent[1].Data))
}

// compatible returns messages of all shapes that both sides can send.
func compatible() []*message.Message {
	full, free, empty := newMessage("key", "payload"), newMessage("", "\xff\x00 no text"), newMessage("key", "")
	full.Metadata["name"] = "value"
	full.Metadata["grüße"] = "日本語"
	full.Metadata["empty"] = ""
	empty.Payload = nil
	return []*message.Message{full, free, empty}
}

// theirSubscriber returns what watermill-googlecloud reads from the topic, with the ordering key as metadata.
func theirSubscriber(t *testing.T, options []option.ClientOption, topic string) <-chan *message.Message {
	t.Helper()
	theirs, err := googlecloud.NewSubscriber(googlecloud.SubscriberConfig{
		ProjectID:                project,
		ClientOptions:            options,
		GenerateSubscriptionName: func(topic string) string { return topic + ".theirs" },
		Unmarshaler: googlecloud.NewOrderingUnmarshaler(func(key string, msg *message.Message) error {
			msg.Metadata["key"] = key
			return nil
		}),
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, theirs.Close()) })
	messages, err := theirs.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return messages
}

// keyMarshaler sends our key as the ordering key, as a service on watermill-googlecloud does with its own.
type keyMarshaler struct {
	googlecloud.DefaultMarshalerUnmarshaler
}

func (m keyMarshaler) Marshal(topic string, msg *message.Message) (*gcp.Message, error) {
	bare := msg.Copy()
	transport.SetKey(bare, "")
	marshaled, err := m.DefaultMarshalerUnmarshaler.Marshal(topic, bare)
	if err == nil {
		marshaled.OrderingKey = transport.Key(msg)
	}
	return marshaled, err
}

// TestEmptyRecordKey: watermill-googlecloud's publisher keeps the key with its ordering marshaler, and with its default one drops it.
func TestEmptyRecordKey(t *testing.T) {
	t.Parallel()
	key := func(_ string, msg *message.Message) (string, error) { return transport.Key(msg), nil }
	for name, c := range map[string]struct {
		marshaler googlecloud.Marshaler
		want      string
	}{
		"ordering": {googlecloud.NewOrderingMarshaler(key), "k"},
		"default":  {googlecloud.DefaultMarshalerUnmarshaler{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, options := fake(t)
			topic := devtest.Topic(t)
			_, messages := subscribe(t, connect(t, pubsub.Config{ClientOptions: options}), topic, transport.SubscriberConfig{Consumer: "c", Ordered: true})
			theirs, err := googlecloud.NewPublisher(googlecloud.PublisherConfig{
				ProjectID: project, ClientOptions: options, EnableMessageOrdering: true, Marshaler: c.marshaler,
			}, watermill.NopLogger{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, theirs.Close()) })
			require.NoError(t, theirs.Publish(topic, newMessage("k", "payload")))
			got := next(t, messages)
			require.Equal(t, c.want, transport.Key(got))
			got.Ack()
		})
	}
}
