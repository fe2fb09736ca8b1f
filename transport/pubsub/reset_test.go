package pubsub_test

import (
	"context"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestReset: a subscription that keeps acked messages gets them again, from a time on or all of them, or none of those that
// wait. pstest forgets the messages that a seek brings back.
func TestReset(t *testing.T) {
	t.Parallel()
	options, topic := genuine(t), devtest.Topic(t)
	client := rawClient(t, options)
	_, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topicName(topic)})
	require.NoError(t, err)
	_, err = client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{
		Name: subscriptionName(topic, "labour"), Topic: topicName(topic), AckDeadlineSeconds: 20, RetainAckedMessages: true, ExpirationPolicy: &pubsubpb.ExpirationPolicy{},
	})
	require.NoError(t, err)
	tr := connect(t, pubsub.Config{ClientOptions: options})
	publish := func(payload string) { require.NoError(t, batcher(t, tr).Publish(topic, newMessage("", payload))) }
	consume := func(want ...string) {
		t.Helper()
		subscriber, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "labour"})
		got := make([]string, 0, len(want))
		for range want {
			msg := next(t, messages)
			got = append(got, string(msg.Payload))
			msg.Ack()
		}
		require.NoError(t, subscriber.Close()) // its acks have arrived
		require.ElementsMatch(t, want, got)
	}
	reset := func(to transport.Position) {
		moves, err := tr.Reset(t.Context(), transport.Reset{Topic: topic, Consumer: "labour", To: to})
		require.NoError(t, err)
		require.Empty(t, moves)
	}
	// pause is for publish times, which have milliseconds.
	pause := func() (before time.Time) {
		before = time.Now()
		require.Eventually(t, func() bool { return time.Since(before) > time.Second }, wait, 10*time.Millisecond)
		return before
	}
	publish("a")
	first := pause()
	publish("b")
	consume("a", "b")
	reset(transport.Position{Time: first.Add(500 * time.Millisecond)})
	consume("b")
	reset(transport.Position{Earliest: true})
	consume("a", "b")
	publish("skipped")
	pause()
	reset(transport.Position{Latest: true})
	publish("c")
	consume("c")
}

func TestResetIsRefused(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	var seeks int
	options = append(options, calls("Seek", func(any) error { seeks++; return nil }))
	tr := connect(t, pubsub.Config{ClientOptions: options})
	s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "labour"})
	require.NoError(t, err)
	require.NoError(t, s.(message.SubscribeInitializer).SubscribeInitialize("topic"))
	reset := func(ctx context.Context, consumer string, to transport.Position, dry bool) error {
		_, err := tr.Reset(ctx, transport.Reset{Topic: "topic", Consumer: consumer, To: to, DryRun: dry})
		return err
	}
	assert.ErrorContains(t, reset(t.Context(), "labour", transport.Position{Earliest: true}, false),
		`keeps no acked messages, so none would come back: from now on keep them by Config.Topic.Retention (pubsub.topic.retention), or by "gcloud pubsub subscriptions update `)
	assert.ErrorContains(t, reset(t.Context(), "labour", transport.Position{Time: time.Now().Add(-time.Hour)}, true), "keeps no acked messages")
	assert.ErrorContains(t, reset(t.Context(), "labor", transport.Position{Earliest: true}, false), "there is no subscription projects/"+project+"/subscriptions/topic.labor: ")
	assert.ErrorContains(t, reset(t.Context(), "labour", transport.Position{Offsets: map[int32]int64{0: 1}}, false), "Pub/Sub has no offsets")
	assert.ErrorContains(t, reset(t.Context(), "labour", transport.Position{}, false), "reset to nowhere")
	require.NoError(t, reset(t.Context(), "labour", transport.Position{Latest: true}, true), "a dry run")
	assert.Zero(t, seeks)
	assert.ErrorContains(t, reset(t.Context(), "labour", transport.Position{Snapshot: "before"}, false), "seek subscription projects/"+project+"/subscriptions/topic.labour: ", "pstest has none")
	require.NoError(t, reset(t.Context(), "labour", transport.Position{Latest: true}, false))
	assert.Equal(t, 2, seeks)
}

// TestResetOfARetainedTopic: what a topic keeps comes back to subscriptions that keep nothing.
func TestResetOfARetainedTopic(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	tr := connect(t, pubsub.Config{ClientOptions: options, Topic: pubsub.TopicConfig{Retention: time.Hour}})
	s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "labour"})
	require.NoError(t, err)
	require.NoError(t, s.(message.SubscribeInitializer).SubscribeInitialize("topic"))
	_, err = tr.Reset(t.Context(), transport.Reset{Topic: "topic", Consumer: "labour", To: transport.Position{Earliest: true}})
	require.NoError(t, err)
}
