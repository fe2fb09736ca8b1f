package pubsub_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	gcp "cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// operator is a person with rights.
type operator struct {
	*gcp.Client
	t testing.TB
}

func (o operator) createTopic(topic string) {
	_, err := o.TopicAdminClient.CreateTopic(o.t.Context(), &pubsubpb.Topic{Name: topicName(topic)})
	require.NoError(o.t, err)
}

func (o operator) deleteTopic(topic string) {
	require.NoError(o.t, o.TopicAdminClient.DeleteTopic(o.t.Context(), &pubsubpb.DeleteTopicRequest{Topic: topicName(topic)}))
}

func (o operator) deleteSubscription(topic, consumer string) {
	require.NoError(o.t, o.SubscriptionAdminClient.DeleteSubscription(o.t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: subscriptionName(topic, consumer)}))
}

func (o operator) hasTopic(topic string) bool {
	_, err := o.TopicAdminClient.GetTopic(o.t.Context(), &pubsubpb.GetTopicRequest{Topic: topicName(topic)})
	if status.Code(err) != codes.NotFound {
		require.NoError(o.t, err)
	}
	return err == nil
}

func publishOne(t testing.TB, p transport.BatchPublisher, topic, payload string) error {
	return errors.Join(p.PublishBatch(t.Context(), topic, []*message.Message{newMessage("k", payload)})...)
}

// publishesAgain publishes as a relay does, until it works.
func publishesAgain(t testing.TB, p transport.BatchPublisher, topic, payload string) {
	t.Helper()
	require.Eventually(t, func() bool {
		err := publishOne(t, p, topic, payload)
		if err != nil {
			require.ErrorIs(t, err, transport.ErrUnavailable)
		}
		return err == nil
	}, wait, 20*time.Millisecond)
}

// payloadsUntil acks messages until the last one comes.
func payloadsUntil(t testing.TB, messages <-chan *message.Message, last string) (all []string) {
	t.Helper()
	for {
		msg := next(t, messages)
		msg.Ack()
		all = append(all, string(msg.Payload))
		if all[len(all)-1] == last {
			return all
		}
	}
}

// A publisher does not create a deleted topic again, and an operator who does is told which subscriptions it lacks.
func TestDeletedTopicByAnOperator(t *testing.T) {
	t.Parallel()
	options := genuine(t)
	topic, op, m := devtest.Topic(t), operator{rawClient(t, options), t}, newMeter()
	logged, log := newLog()
	// What consumes is another process.
	_, messages := subscribe(t, connect(t, pubsub.Config{ClientOptions: options}), topic, transport.SubscriberConfig{Consumer: "c"})
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: options, Logger: log, MeterProvider: m.provider}))
	require.NoError(t, publishOne(t, p, topic, "before"))
	next(t, messages).Ack()
	op.deleteTopic(topic)
	for range 3 {
		err := publishOne(t, p, topic, "refused")
		require.ErrorIs(t, err, transport.ErrUnavailable)
		require.False(t, op.hasTopic(topic), "created again")
	}
	err := publishOne(t, p, topic, "refused")
	require.ErrorContains(t, err, "topic "+topic+" was deleted")
	require.ErrorContains(t, err, "create it with its subscriptions")
	require.Equal(t, 1, logged.count("a topic was deleted while this process published to it"))
	require.EqualValues(t, 1, m.collect(t)["millrace.pubsub.deleted_topics"])

	op.createTopic(topic)
	refusedFor(t, p, topic, "would not reach "+topic+".c")
	op.deleteSubscription(topic, "c") // its consumer creates it again
	publishesAgain(t, p, topic, "after")
	require.Equal(t, []string{"after"}, payloadsUntil(t, messages, "after"))
	require.Equal(t, 1, logged.count("a deleted topic is published to again"))
	require.Zero(t, m.collect(t)["millrace.pubsub.deleted_topics"])
}

// Nobody publishes between the deletion and the new topic, so nothing fails. The publisher looks now and then.
func TestDeletedTopicBetweenPublishes(t *testing.T) {
	t.Parallel()
	options := genuine(t)
	topic, op := devtest.Topic(t), operator{rawClient(t, options), t}
	consumers := connect(t, pubsub.Config{ClientOptions: options})
	subscribe(t, consumers, topic, transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, initialize(t, consumers, topic, transport.SubscriberConfig{Consumer: "retired"}))
	logged, log := newLog()
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: options, Logger: log, Recheck: 50 * time.Millisecond}))
	require.NoError(t, publishOne(t, p, topic, "before"))
	op.deleteSubscription(topic, "retired")
	publishesFor(t, p, topic, 500*time.Millisecond) // a person deleted it, and nothing is wrong with the topic

	op.deleteTopic(topic)
	op.createTopic(topic)
	require.Eventually(t, func() bool { return logged.count("a topic was deleted while this process published to it") == 1 }, wait, time.Millisecond)
	err := publishOne(t, p, topic, "refused")
	require.ErrorIs(t, err, transport.ErrUnavailable)
	require.ErrorContains(t, err, "would not reach "+topic+".c")
	require.NotContains(t, err.Error(), "retired")
}

// A process that starts after the topic was deleted has never known it. The subscriptions that are left tell.
func TestDeletedTopicByAStart(t *testing.T) {
	t.Parallel()
	options := emulator(t)
	topic, op := devtest.Topic(t), operator{rawClient(t, options), t}
	require.NoError(t, initialize(t, connect(t, pubsub.Config{ClientOptions: options}), topic, transport.SubscriberConfig{Consumer: "c"}))
	op.deleteTopic(topic)
	tr := connect(t, pubsub.Config{ClientOptions: options})
	for range 2 {
		err := publishOne(t, batcher(t, tr), topic, "refused")
		require.ErrorIs(t, err, transport.ErrUnavailable)
		require.ErrorContains(t, err, "a new one would not feed its subscriptions "+topic+".c")
	}
	require.ErrorContains(t, initialize(t, tr, topic, transport.SubscriberConfig{Consumer: "another"}), topic+".c")
	require.False(t, op.hasTopic(topic))
	op.deleteSubscription(topic, "c")
	require.NoError(t, publishOne(t, batcher(t, tr), topic, "to a new topic"))
}

// The consumer of a deleted topic gets what its subscription holds, and says that nothing else will come. When a person
// deletes the subscription, the consumer creates topic and subscription again.
func TestDeletedTopicUnderAConsumer(t *testing.T) {
	t.Parallel()
	options := genuine(t)
	topic, op, m := devtest.Topic(t), operator{rawClient(t, options), t}, newMeter()
	logged, log := newLog()
	tr := connect(t, pubsub.Config{ClientOptions: options, Logger: log, MeterProvider: m.provider, Recheck: 50 * time.Millisecond})
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Concurrency: 1})
	require.NoError(t, publishOne(t, batcher(t, tr), topic, "running"))
	running := next(t, messages)
	require.NoError(t, publishOne(t, batcher(t, tr), topic, "waiting"))
	op.deleteTopic(topic)
	require.Eventually(t, func() bool { return logged.count("the subscription's topic was deleted") > 1 }, wait, time.Millisecond)
	require.Contains(t, []int64{1, 2}, m.collect(t)["millrace.pubsub.deleted_topics"], "the consumer's, and perhaps the publisher's")
	running.Ack()
	require.Equal(t, []string{"waiting"}, payloadsUntil(t, messages, "waiting"))
	op.deleteSubscription(topic, "c")
	publishesAgain(t, batcher(t, tr), topic, "after")
	require.Equal(t, []string{"after"}, payloadsUntil(t, messages, "after"))
	require.Eventually(t, func() bool { return m.collect(t)["millrace.pubsub.deleted_topics"] == 0 }, wait, time.Millisecond)
}

// A push subscription that was deleted, with its topic or alone, is created again while its consumer runs: nothing tells the
// consumer otherwise. Messages come again.
func TestDeletedTopicUnderAPushConsumer(t *testing.T) {
	t.Parallel()
	for name, withTopic := range map[string]bool{"subscription alone": false, "topic and subscription": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := emulator(t)
			topic, op := devtest.Topic(t), operator{rawClient(t, options), t}
			server := httptest.NewUnstartedServer(nil)
			tr := connect(t, pubsub.Config{
				ClientOptions: options, Recheck: 50 * time.Millisecond,
				Subscription: pubsub.SubscriptionConfig{Push: &pubsub.Push{Endpoint: "http://" + server.Listener.Addr().String() + "/push", AllowUnauthenticated: true}},
			})
			server.Config.Handler = tr.PushHandler()
			server.Start()
			t.Cleanup(server.Close)
			t.Cleanup(func() { require.NoError(t, tr.Close()) }) // before the server's
			_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
			if withTopic {
				op.deleteTopic(topic)
			}
			op.deleteSubscription(topic, "c")
			require.Eventually(t, func() bool {
				have, err := op.SubscriptionAdminClient.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: subscriptionName(topic, "c")})
				return err == nil && have.Topic == topicName(topic) && have.PushConfig.GetPushEndpoint() != ""
			}, wait, 20*time.Millisecond)
			publishesAgain(t, batcher(t, tr), topic, "after")
			require.Equal(t, []string{"after"}, payloadsUntil(t, messages, "after"))
		})
	}
}

// An account that may only publish learns of a deleted topic by its answers, and knows no subscriptions to wait for.
func TestDeletedTopicWithoutRights(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	topic, op := devtest.Topic(t), operator{rawClient(t, options), t}
	op.createTopic(topic)
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: append(options, before(func(_ context.Context, method string, _ any) error {
		if method != "Publish" {
			return status.Error(codes.PermissionDenied, "denied")
		}
		return nil
	}))}))
	require.NoError(t, publishOne(t, p, topic, "before"))
	op.deleteTopic(topic)
	for range 3 {
		require.ErrorIs(t, publishOne(t, p, topic, "refused"), transport.ErrUnavailable)
	}
	op.createTopic(topic)
	publishesAgain(t, p, topic, "after")
}

// refusedFor publishes until the error says why.
func refusedFor(t testing.TB, p transport.BatchPublisher, topic, why string) {
	t.Helper()
	require.Eventually(t, func() bool {
		err := publishOne(t, p, topic, "refused")
		require.ErrorIs(t, err, transport.ErrUnavailable)
		return strings.Contains(err.Error(), why)
	}, wait, 20*time.Millisecond)
}

func publishesFor(t testing.TB, p transport.BatchPublisher, topic string, d time.Duration) {
	t.Helper()
	for began := time.Now(); time.Since(began) < d; {
		require.NoError(t, publishOne(t, p, topic, "fine"))
	}
}
