package pubsub_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-googlecloud/v2/pkg/googlecloud"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestWatermillReadsOurs and TestWeReadWatermills: a service can move from watermill-googlecloud one process at a time.
func TestWatermillReadsOurs(t *testing.T) {
	t.Parallel()
	options := emulator(t)
	topic := devtest.Topic(t)
	theirs, err := googlecloud.NewSubscriber(googlecloud.SubscriberConfig{
		ProjectID:                project,
		ClientOptions:            options,
		GenerateSubscriptionName: func(topic string) string { return topic + ".theirs" },
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, theirs.Close()) })
	messages, err := theirs.Subscribe(t.Context(), topic)
	require.NoError(t, err)

	sent := newMessage("key", "payload")
	sent.Metadata["name"] = "value"
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: options}))
	require.NoError(t, p.Publish(topic, sent))

	got := next(t, messages)
	require.Equal(t, sent.UUID, got.UUID)
	require.Equal(t, sent.Payload, got.Payload)
	require.Equal(t, "value", got.Metadata["name"])
	require.NotContains(t, got.Metadata, transport.KeyMetadata)
	got.Ack()
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
		Marshaler: googlecloud.NewOrderingMarshaler(func(string, *message.Message) (string, error) {
			return "key", nil
		}),
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, theirs.Close()) })
	sent := newMessage("", "payload")
	sent.Metadata["name"] = "value"
	require.NoError(t, theirs.Publish(topic, sent))

	got := next(t, messages)
	require.Equal(t, sent.UUID, got.UUID)
	require.Equal(t, sent.Payload, got.Payload)
	require.Equal(t, message.Metadata{"name": "value", transport.KeyMetadata: "key"}, got.Metadata)
	got.Ack()
}
