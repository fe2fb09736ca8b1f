package pubsub_test

import (
	"testing"
	"time"

	gcp "cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestForeignRecord: a message that no publisher of ours has sent gets its ID from where the configuration says, the same at
// each delivery, and also when it was kept before the configuration said so.
func TestForeignRecord(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	topic := devtest.Topic(t)
	sources := map[string]transport.EventIDSource{
		"none": {}, "attribute": pubsub.EventIDFromAttribute("ce-id"), "json": pubsub.EventIDFromJSON("data.id"),
		"message_id": pubsub.EventIDFromMessageID(), "wrong": pubsub.EventIDFromAttribute("id"),
	}
	consumers, finders, messages := map[string]pubsub.SubscriptionConfig{}, map[string]transport.EventIDFinder{}, map[string]<-chan *message.Message{}
	for name, source := range sources {
		consumers[name] = pubsub.SubscriptionConfig{EventID: source}
	}
	tr := connect(t, pubsub.Config{ClientOptions: options, Consumers: consumers})
	for name := range sources {
		var s message.Subscriber
		s, messages[name] = subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: name})
		finders[name] = s.(transport.EventIDFinder)
	}
	raw := rawClient(t, options).Publisher(topic)
	defer raw.Stop()
	_, err := raw.Publish(t.Context(), &gcp.Message{Data: []byte(`{"data": {"id": 7}}`), Attributes: map[string]string{"ce-id": "5"}}).Get(t.Context())
	require.NoError(t, err)

	kept := next(t, messages["none"])
	require.Empty(t, kept.UUID)
	require.ErrorContains(t, transport.EventIDErrorFrom(kept.Context()), "pubsub.consumers.NAME.event_id")
	origin := transport.OriginFrom(kept.Context())
	require.Equal(t, topic, origin["topic"])
	kept.Ack()
	for name, want := range map[string]string{"attribute": "5", "json": "7", "message_id": ""} {
		first := next(t, messages[name])
		require.NoError(t, transport.EventIDErrorFrom(first.Context()))
		if want == "" {
			id, err := uuid.Parse(first.UUID)
			require.NoError(t, err)
			sec, _ := id.Time().UnixTime()
			assert.WithinDuration(t, time.Now(), time.Unix(sec, 0), time.Minute)
			want = first.UUID
		}
		assert.Equal(t, want, first.UUID)
		first.Nack()
		again := next(t, messages[name])
		assert.Equal(t, want, again.UUID, "delivered again")
		again.Ack()
		found, err := finders[name].FindEventID(kept, origin)
		require.NoError(t, err)
		assert.Equal(t, want, found, "of what was kept")
	}
	msg := next(t, messages["wrong"])
	assert.Empty(t, msg.UUID)
	assert.ErrorContains(t, transport.EventIDErrorFrom(msg.Context()), `the header "id" is missing or empty`)
	msg.Ack()
	_, err = finders["message_id"].FindEventID(kept, nil)
	assert.ErrorContains(t, err, "its message ID was not kept")
}
