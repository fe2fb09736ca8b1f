package pubsub_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	gcp "cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// withDeadLetters is a transport whose consumer "c" has the dead-letter topic.
func withDeadLetters(dead string) pubsub.Config {
	return pubsub.Config{Consumers: map[string]pubsub.SubscriptionConfig{"c": {DeadLetter: pubsub.DeadLetter{Topic: dead, MaxAttempts: 5}}}}
}

func attempt(msg *message.Message) int { return transport.DeliveryFrom(msg.Context()).Attempt() }

func later(msg *message.Message) {
	transport.DeliveryFrom(msg.Context()).RetryAfter(10 * time.Millisecond)
	msg.Nack()
}

func TestFeaturesOfAttempts(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	dead := pubsub.SubscriptionConfig{DeadLetter: pubsub.DeadLetter{Topic: "dead"}}
	for _, c := range []struct {
		config pubsub.Config
		want   bool
	}{
		{pubsub.Config{}, false},
		{pubsub.Config{Subscription: dead}, true},
		{pubsub.Config{Subscription: dead, Consumers: map[string]pubsub.SubscriptionConfig{"c": {}}}, false},
		{pubsub.Config{Consumers: map[string]pubsub.SubscriptionConfig{"c": dead}}, false},
	} {
		c.config.ClientOptions = options
		require.Equal(t, c.want, connect(t, c.config).Features().Attempts)
	}
}

// TestDeadLetter: a message that is nacked too often goes to the dead-letter topic, and each delivery tells its number.
func TestDeadLetter(t *testing.T) {
	t.Parallel()
	config := withDeadLetters(devtest.Topic(t))
	config.ClientOptions = genuine(t)
	dead, topic := config.Consumers["c"].DeadLetter.Topic, devtest.Topic(t)
	tr := connect(t, config)
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
	_, deads := subscribe(t, tr, dead, transport.SubscriberConfig{Consumer: "dead-letters"})
	sent := newMessage("", "poison")
	require.NoError(t, batcher(t, tr).Publish(topic, sent))
	for n := 1; n <= 5; n++ {
		msg := next(t, messages)
		require.Equal(t, n, attempt(msg))
		msg.Nack()
	}
	msg := next(t, deads)
	require.Equal(t, sent.UUID, msg.UUID)
	require.Equal(t, "poison", string(msg.Payload))
	require.Equal(t, "5", msg.Metadata[pubsub.DeadDeliveriesMetadata])
	msg.Ack()
}

// TestContentionIsNoAttempt: a message that another consumer holds is nacked as often as it takes. Pub/Sub must not count
// that, or would bury it.
func TestContentionIsNoAttempt(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		server, options := fake(t)
		topic := devtest.Topic(t)
		config := withDeadLetters(devtest.Topic(t))
		config.ClientOptions = options
		tr := connect(t, config)
		_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Ordered: ordered, Concurrency: 1})
		require.NoError(t, batcher(t, tr).Publish(topic, newMessage("key", "contended")))
		for range 12 {
			msg := next(t, messages)
			require.Equal(t, 1, attempt(msg))
			later(msg)
		}
		next(t, messages).Ack()
		require.Eventually(t, func() bool { return acked(server) == 1 }, wait, time.Millisecond)
		require.Equal(t, 1, server.Messages()[0].Deliveries)
	}
}

// TestContentionUnderARetryPolicy: that policy is for failures. With it, too, Pub/Sub is not asked.
func TestContentionUnderARetryPolicy(t *testing.T) {
	t.Parallel()
	server, options := fake(t)
	topic := devtest.Topic(t)
	tr := connect(t, pubsub.Config{ClientOptions: options, Subscription: pubsub.SubscriptionConfig{Retry: pubsub.Retry{Min: time.Minute}}})
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, batcher(t, tr).Publish(topic, newMessage("", "contended")))
	later(next(t, messages))
	next(t, messages).Ack()
	require.Eventually(t, func() bool { return acked(server) == 1 }, wait, time.Millisecond)
	require.Equal(t, 1, server.Messages()[0].Deliveries)
}

// TestOrderedDeadLetter: ordered messages are retried in place, so Pub/Sub does not see their attempts. The subscriber
// sends them to the dead-letter topic as Pub/Sub would, and their key goes on.
func TestOrderedDeadLetter(t *testing.T) {
	t.Parallel()
	config := withDeadLetters(devtest.Topic(t))
	config.ClientOptions = emulator(t)
	dead, topic := config.Consumers["c"].DeadLetter.Topic, devtest.Topic(t)
	tr := connect(t, config)
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Ordered: true, Concurrency: 1})
	_, deads := subscribe(t, tr, dead, transport.SubscriberConfig{Consumer: "dead-letters"})
	poison := newMessage("a", "a1")
	poison.Metadata["name"] = "value"
	require.NoError(t, batcher(t, tr).Publish(topic, poison, newMessage("a", "a2"), newMessage("b", "b1")))

	var attempts []int
	var others []string
	for len(attempts) < 6 || len(others) < 2 {
		msg := next(t, messages)
		if string(msg.Payload) != "a1" {
			others = append(others, string(msg.Payload))
			msg.Ack()
			continue
		}
		attempts = append(attempts, attempt(msg))
		if len(attempts) == 3 {
			later(msg) // contention: it counts for nothing
		} else {
			msg.Nack()
		}
	}
	require.Equal(t, []int{1, 2, 3, 3, 4, 5}, attempts)
	require.Equal(t, []string{"b1", "a2"}, others)

	msg := next(t, deads)
	require.Equal(t, poison.UUID, msg.UUID)
	require.Equal(t, "a1", string(msg.Payload))
	require.Equal(t, "a", transport.Key(msg))
	require.Equal(t, "value", msg.Metadata["name"])
	require.Equal(t, "5", msg.Metadata[pubsub.DeadDeliveriesMetadata])
	require.Equal(t, topic+".c", msg.Metadata[pubsub.DeadSubscriptionMetadata])
	require.Equal(t, project, msg.Metadata[pubsub.DeadProjectMetadata])
	published, err := time.Parse(time.RFC3339, msg.Metadata[pubsub.DeadPublishTimeMetadata])
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), published, time.Minute)
	msg.Ack()
}

// TestDeadLetterTopicOutOfReach: the message is tried on, and acked only when it has arrived.
func TestDeadLetterTopicOutOfReach(t *testing.T) {
	t.Parallel()
	server, options := fake(t)
	config := withDeadLetters(devtest.Topic(t))
	dead, topic := config.Consumers["c"].DeadLetter.Topic, devtest.Topic(t)
	var reachable atomic.Bool
	config.ClientOptions = append([]option.ClientOption{calls("Publish", func(request any) error {
		if request.(*pubsubpb.PublishRequest).Topic == topicName(dead) && !reachable.Load() {
			return status.Error(codes.PermissionDenied, "denied")
		}
		return nil
	})}, options...)
	tr := connect(t, config)
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Ordered: true})
	require.NoError(t, batcher(t, tr).Publish(topic, newMessage("key", "poison")))
	for range 6 {
		next(t, messages).Nack()
	}
	msg := next(t, messages)
	require.Equal(t, 7, attempt(msg))
	require.Zero(t, acked(server))
	reachable.Store(true)
	msg.Nack()
	_, deads := subscribe(t, tr, dead, transport.SubscriberConfig{Consumer: "dead-letters"})
	msg = next(t, deads)
	require.Equal(t, "7", msg.Metadata[pubsub.DeadDeliveriesMetadata])
	msg.Ack()
	require.Eventually(t, func() bool { return acked(server) == 2 }, wait, time.Millisecond)
}

// TestDeadLetterWithoutRoom: a message that cannot carry the reasons goes without them.
func TestDeadLetterWithoutRoom(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	config := withDeadLetters(devtest.Topic(t))
	config.ClientOptions = options
	dead, topic := config.Consumers["c"].DeadLetter.Topic, devtest.Topic(t)
	tr := connect(t, config)
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Ordered: true})
	_, deads := subscribe(t, tr, dead, transport.SubscriberConfig{Consumer: "dead-letters"})
	full := newMessage("key", "poison")
	for i := range pubsub.Limits.MetadataEntries {
		full.Metadata[fmt.Sprint("name", i)] = "value"
	}
	require.NoError(t, batcher(t, tr).Publish(topic, full))
	for range 5 {
		next(t, messages).Nack()
	}
	msg := next(t, deads)
	require.Equal(t, full.UUID, msg.UUID)
	require.Equal(t, full.Metadata, msg.Metadata)
	msg.Ack()
}

// TestOrderedDeadLetterOfAForeignProducer: Pub/Sub takes one attribute more than our own messages may have beside their
// ID. Such a message must not hold back its key for ever.
func TestOrderedDeadLetterOfAForeignProducer(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	config := withDeadLetters(devtest.Topic(t))
	config.ClientOptions = options
	dead, topic := config.Consumers["c"].DeadLetter.Topic, devtest.Topic(t)
	tr := connect(t, config)
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Ordered: true})
	_, deads := subscribe(t, tr, dead, transport.SubscriberConfig{Consumer: "dead-letters"})
	foreign := &gcp.Message{Data: []byte("poison"), OrderingKey: "key", Attributes: map[string]string{}}
	for i := range 100 {
		foreign.Attributes[fmt.Sprint("name", i)] = "value\x00"
	}
	publisher := rawClient(t, options).Publisher(topic)
	publisher.EnableMessageOrdering = true
	_, err := publisher.Publish(t.Context(), foreign).Get(t.Context())
	require.NoError(t, err)
	publisher.Stop()
	for range 5 {
		next(t, messages).Nack()
	}
	msg := next(t, deads)
	require.Equal(t, "poison", string(msg.Payload))
	require.Equal(t, "key", transport.Key(msg))
	delete(msg.Metadata, transport.KeyMetadata)
	require.EqualValues(t, foreign.Attributes, msg.Metadata)
	msg.Ack()
}

// TestDeadLetterTopicIsDeleted: it is made again, and so is its subscription, before a message counts as sent there. While
// the subscription of the old topic is there, which would get nothing, neither is made.
func TestDeadLetterTopicIsDeleted(t *testing.T) {
	t.Parallel()
	config := withDeadLetters(devtest.Topic(t))
	config.ClientOptions = genuine(t)
	logged, log := newLog()
	config.Logger = log
	dead, topic := config.Consumers["c"].DeadLetter.Topic, devtest.Topic(t)
	tr := connect(t, config)
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Ordered: true})
	require.NoError(t, batcher(t, tr).Publish(dead, newMessage("", "so that the topic is known")))
	client := rawClient(t, config.ClientOptions)
	require.NoError(t, client.TopicAdminClient.DeleteTopic(t.Context(), &pubsubpb.DeleteTopicRequest{Topic: topicName(dead)}))
	require.NoError(t, batcher(t, tr).Publish(topic, newMessage("key", "poison")))
	require.Eventually(t, func() bool {
		next(t, messages).Nack()
		return logged.count("whose topic is _deleted-topic_") > 0
	}, wait, time.Millisecond)
	require.NoError(t, client.SubscriptionAdminClient.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: subscriptionName(dead, "dead-letters")}))
	reader := transport.SubscriberConfig{Consumer: "dead-letters"}
	require.Eventually(t, func() bool { return initialize(t, tr, dead, reader) == nil }, wait, time.Millisecond) // it may share a look from before
	_, deads := subscribe(t, tr, dead, reader)
	for {
		select {
		case msg := <-messages:
			msg.Nack()
		case msg := <-deads:
			require.Equal(t, "poison", string(msg.Payload))
			msg.Ack()
			return
		case <-time.After(wait):
			t.Fatal("the message was lost")
		}
	}
}
