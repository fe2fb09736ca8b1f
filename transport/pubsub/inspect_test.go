package pubsub_test

import (
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	tr := connect(t, pubsub.Config{ProjectID: "p", ClientOptions: options})
	inspect := func(consumer string) transport.Inspection {
		i, err := tr.Inspect(t.Context(), "topic", consumer)
		require.NoError(t, err)
		return i
	}
	assert.Equal(t, transport.Inspection{Lag: -1}, inspect("consumer"), "and it is not made by that")
	sub, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "consumer"})
	require.NoError(t, err)
	_, err = sub.Subscribe(t.Context(), "topic")
	require.NoError(t, err)
	assert.Equal(t, transport.Inspection{Topic: true, Lag: -1}, inspect(""))
	assert.Equal(t, transport.Inspection{Topic: true, Consumer: true, Lag: -1, Retention: 7 * 24 * time.Hour}, inspect("consumer"))
	client, name := rawClient(t, options), "projects/p/topics/topic"
	require.NoError(t, client.TopicAdminClient.DeleteTopic(t.Context(), &pubsubpb.DeleteTopicRequest{Topic: name}))
	_, err = client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: name})
	require.NoError(t, err)
	assert.Equal(t, transport.Inspection{Topic: true, Lag: -1}, inspect("consumer"), "the subscription is the deleted topic's")
	_, err = tr.Inspect(t.Context(), "no topic", "")
	require.Error(t, err)
}
