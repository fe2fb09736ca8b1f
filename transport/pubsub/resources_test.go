package pubsub_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	gcp "cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// lines keeps what is logged.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), what)
}

func newLog() (*lines, *slog.Logger) {
	l := &lines{}
	return l, slog.New(slog.NewTextHandler(l, nil))
}

// calls makes instead answer the unary calls whose method ends in it; nil lets the call pass.
func calls(method string, instead func(request any) error) option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(func(ctx context.Context, full string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if strings.HasSuffix(full, "/"+method) {
			if err := instead(request); err != nil {
				return err
			}
		}
		return invoke(ctx, full, request, reply, cc, opts...)
	}))
}

func subscriptionName(topic, consumer string) string {
	return "projects/" + project + "/subscriptions/" + topic + "." + consumer
}

func topicName(topic string) string { return "projects/" + project + "/topics/" + topic }

func getSubscription(t testing.TB, client *gcp.Client, topic, consumer string) *pubsubpb.Subscription {
	t.Helper()
	got, err := client.SubscriptionAdminClient.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: subscriptionName(topic, consumer)})
	require.NoError(t, err)
	return got
}

// initialize does what a router does before it subscribes.
func initialize(t testing.TB, tr *pubsub.Transport, topic string, config transport.SubscriberConfig) error {
	t.Helper()
	s, err := tr.Subscriber(config)
	require.NoError(t, err)
	return s.(interface{ SubscribeInitialize(topic string) error }).SubscribeInitialize(topic)
}

func TestSubscriptionIsCreatedAsConfigured(t *testing.T) {
	t.Parallel()
	options := emulator(t)
	topic, dead := devtest.Topic(t), devtest.Topic(t)
	tr := connect(t, pubsub.Config{ClientOptions: options, Consumers: map[string]pubsub.SubscriptionConfig{"c": {
		AckDeadline: 40 * time.Second, ExactlyOnce: true, Filter: `attributes.a = "b"`,
		DeadLetter: pubsub.DeadLetter{Topic: dead, MaxAttempts: 7}, Retry: pubsub.Retry{Min: 2 * time.Second, Max: 3 * time.Second},
	}}})
	require.NoError(t, initialize(t, tr, topic, transport.SubscriberConfig{Consumer: "c"}))
	require.NoError(t, initialize(t, tr, topic, transport.SubscriberConfig{Consumer: "other"}))
	client := rawClient(t, options)
	got := getSubscription(t, client, topic, "c")
	require.EqualValues(t, 40, got.AckDeadlineSeconds)
	require.True(t, got.EnableExactlyOnceDelivery)
	require.Equal(t, `attributes.a = "b"`, got.Filter)
	require.Equal(t, topicName(dead), got.DeadLetterPolicy.DeadLetterTopic)
	require.EqualValues(t, 7, got.DeadLetterPolicy.MaxDeliveryAttempts)
	require.Equal(t, 2*time.Second, got.RetryPolicy.MinimumBackoff.AsDuration())
	require.Equal(t, 3*time.Second, got.RetryPolicy.MaximumBackoff.AsDuration())
	require.Nil(t, got.ExpirationPolicy.GetTtl())

	other := getSubscription(t, client, topic, "other")
	require.EqualValues(t, 20, other.AckDeadlineSeconds)
	require.False(t, other.EnableExactlyOnceDelivery)
	require.Nil(t, other.DeadLetterPolicy)
	require.Nil(t, other.RetryPolicy)

	// What is as configured is no difference, whatever the service makes of it.
	for _, consumer := range []string{"c", "other"} {
		all, err := tr.Differences(t.Context(), topic, transport.SubscriberConfig{Consumer: consumer})
		require.NoError(t, err)
		require.Empty(t, all)
	}
}

// TestDeadLettersAreKept: what arrives at a topic without a subscription is lost.
func TestDeadLettersAreKept(t *testing.T) {
	t.Parallel()
	options := emulator(t)
	client := rawClient(t, options)
	with := func(dead string) pubsub.Config {
		return pubsub.Config{ClientOptions: options, Consumers: map[string]pubsub.SubscriptionConfig{"c": {DeadLetter: pubsub.DeadLetter{Topic: dead}}}}
	}
	consumer := transport.SubscriberConfig{Consumer: "c"}
	dead := devtest.Topic(t)
	require.NoError(t, initialize(t, connect(t, with(dead)), devtest.Topic(t), consumer))
	got := getSubscription(t, client, dead, "dead-letters")
	require.Equal(t, topicName(dead), got.Topic)
	require.Nil(t, got.DeadLetterPolicy)

	// A topic that somebody reads gets none.
	read := devtest.Topic(t)
	tr := connect(t, with(read))
	require.NoError(t, initialize(t, tr, read, transport.SubscriberConfig{Consumer: "reader"}))
	require.NoError(t, initialize(t, tr, devtest.Topic(t), consumer))
	_, err := client.SubscriptionAdminClient.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: subscriptionName(read, "dead-letters")})
	require.Equal(t, codes.NotFound, status.Code(err))

	// Under CheckOnly it is told.
	mute, topic := devtest.Topic(t), devtest.Topic(t)
	for _, name := range []string{mute, topic} {
		_, err = client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topicName(name)})
		require.NoError(t, err)
	}
	_, err = client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{
		Name: subscriptionName(topic, "c"), Topic: topicName(topic), AckDeadlineSeconds: 20, ExpirationPolicy: &pubsubpb.ExpirationPolicy{},
		DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: topicName(mute), MaxDeliveryAttempts: 10},
	})
	require.NoError(t, err)
	config := with(mute)
	config.Resources = pubsub.CheckOnly
	logged, log := newLog()
	config.Logger = log
	tr = connect(t, config)
	require.NoError(t, initialize(t, tr, topic, consumer))
	require.Equal(t, 1, logged.count("a dead-letter topic has no subscription"))
	all, err := tr.Differences(t.Context(), topic, consumer)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, "dead_letter_topic", all[0].Field)

	// A subscription that is its own dead-letter topic would go round.
	require.ErrorContains(t, initialize(t, connect(t, with(dead)), dead, consumer), "Config.Consumers")
}

func TestCheckOnlyCreatesNothing(t *testing.T) {
	t.Parallel()
	options := emulator(t)
	client := rawClient(t, options)
	topic := devtest.Topic(t)
	var created []string
	tr := connect(t, pubsub.Config{Resources: pubsub.CheckOnly, ClientOptions: append(options, calls("CreateTopic", func(any) error {
		created = append(created, "topic")
		return nil
	}), calls("CreateSubscription", func(any) error {
		created = append(created, "subscription")
		return nil
	}))})
	consumer := transport.SubscriberConfig{Consumer: "c"}
	err := initialize(t, tr, topic, consumer)
	require.ErrorContains(t, err, "topic "+topicName(topic)+" is missing")
	require.ErrorContains(t, err, "gcloud pubsub topics create "+topic)
	err = batcher(t, tr).Publish(topic, newMessage("", "x"))
	require.ErrorIs(t, err, transport.ErrUnavailable, "it says nothing against the message")
	require.ErrorContains(t, err, "is missing")

	_, err = client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topicName(topic)})
	require.NoError(t, err)
	err = initialize(t, tr, topic, consumer)
	require.ErrorContains(t, err, "subscription "+subscriptionName(topic, "c")+" of topic")
	require.ErrorContains(t, err, "is missing")
	_, err = tr.Differences(t.Context(), topic, consumer)
	require.Equal(t, codes.NotFound, status.Code(err))

	require.NoError(t, initialize(t, connect(t, pubsub.Config{ClientOptions: options}), topic, consumer))
	require.NoError(t, initialize(t, tr, topic, consumer), "a failure is not remembered")
	require.Empty(t, created)
}

// TestMissingSubscriptionThatMayNotBeCreated is no subscription that may not be looked at: nothing would ever come, and
// for push nothing would even tell.
func TestMissingSubscriptionThatMayNotBeCreated(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	topic := devtest.Topic(t)
	tr := connect(t, pubsub.Config{ClientOptions: append([]option.ClientOption{calls("CreateSubscription", func(any) error {
		return status.Error(codes.PermissionDenied, "denied")
	})}, options...)})
	err := initialize(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
	require.ErrorContains(t, err, "create subscription "+subscriptionName(topic, "c"))
	require.ErrorContains(t, err, "denied")
}

// TestExistingSubscriptionThatDiffers: it is told once and left, or under Update changed, and only what differs.
func TestExistingSubscriptionThatDiffers(t *testing.T) {
	t.Parallel()
	options := emulator(t)
	client := rawClient(t, options)
	topic, dead := devtest.Topic(t), devtest.Topic(t)
	consumer := transport.SubscriberConfig{Consumer: "c"}
	require.NoError(t, initialize(t, connect(t, pubsub.Config{ClientOptions: options}), topic, consumer))

	settings := pubsub.SubscriptionConfig{
		AckDeadline: 33 * time.Second, ExactlyOnce: true,
		DeadLetter: pubsub.DeadLetter{Topic: dead}, Retry: pubsub.Retry{Min: time.Second, Max: 2 * time.Second},
	}
	fields := []string{"ack_deadline_seconds", "enable_exactly_once_delivery", "dead_letter_policy", "retry_policy"}
	logged, log := newLog()
	with := func(settings pubsub.SubscriptionConfig, resources pubsub.Resources, more ...option.ClientOption) *pubsub.Transport {
		return connect(t, pubsub.Config{
			Resources: resources, Consumers: map[string]pubsub.SubscriptionConfig{"c": settings}, Logger: log, ClientOptions: append(more, options...),
		})
	}
	tr := with(settings, pubsub.CreateMissing)
	require.NoError(t, initialize(t, tr, topic, consumer))
	require.NoError(t, initialize(t, tr, topic, consumer))
	require.EqualValues(t, 20, getSubscription(t, client, topic, "c").AckDeadlineSeconds)
	require.Equal(t, len(fields), logged.count("a subscription is not as configured"), "each setting once")
	for _, field := range fields {
		require.Equal(t, 1, logged.count("setting="+field))
	}
	all, err := tr.Differences(t.Context(), topic, consumer)
	require.NoError(t, err)
	require.Len(t, all, len(fields))
	require.Equal(t, pubsub.Difference{Field: "ack_deadline_seconds", Have: "20", Want: "33", Mutable: true}, all[0])
	require.Equal(t, pubsub.Difference{Field: "dead_letter_policy", Have: "none", Want: topicName(dead) + " after 10 deliveries", Mutable: true}, all[2])

	denied := with(settings, pubsub.Update, calls("UpdateSubscription", func(any) error { return status.Error(codes.PermissionDenied, "denied") }))
	require.NoError(t, initialize(t, denied, topic, consumer), "an account that may only receive goes on")
	require.Equal(t, 2*len(fields), logged.count("a subscription is not as configured"))

	var masks [][]string
	record := calls("UpdateSubscription", func(request any) error {
		masks = append(masks, request.(*pubsubpb.UpdateSubscriptionRequest).UpdateMask.Paths)
		return nil
	})
	tr = with(settings, pubsub.Update, record)
	require.NoError(t, initialize(t, tr, topic, consumer))
	all, err = tr.Differences(t.Context(), topic, consumer)
	require.NoError(t, err)
	require.Empty(t, all)

	// Back to the defaults: what is no longer wanted goes.
	push := pubsub.SubscriptionConfig{Push: &pubsub.Push{Endpoint: "http://127.0.0.1:1/push", AllowUnauthenticated: true}}
	for _, settings := range []pubsub.SubscriptionConfig{{}, {}, push, {}} {
		require.NoError(t, initialize(t, with(settings, pubsub.Update, record), topic, consumer))
		all, err = with(settings, pubsub.CheckOnly).Differences(t.Context(), topic, consumer)
		require.NoError(t, err)
		require.Empty(t, all)
	}
	require.Equal(t, [][]string{fields, fields, {"push_config"}, {"push_config"}}, masks)

	// Push where the service pulls, or the other way round, would be silence.
	for _, resources := range []pubsub.Resources{pubsub.CreateMissing, pubsub.CheckOnly} {
		require.ErrorContains(t, initialize(t, with(push, resources), topic, consumer), "exists with push_config none")
	}
	require.NoError(t, initialize(t, with(push, pubsub.Update), topic, consumer))
	require.ErrorContains(t, initialize(t, with(pubsub.SubscriptionConfig{}, pubsub.CreateMissing), topic, consumer), "says none")

	// What Pub/Sub cannot change is an error under each of them.
	for _, resources := range []pubsub.Resources{pubsub.CreateMissing, pubsub.CheckOnly, pubsub.Update} {
		err := initialize(t, with(pubsub.SubscriptionConfig{Filter: `attributes.a = "b"`}, resources), topic, transport.SubscriberConfig{Consumer: "c", Ordered: true})
		require.ErrorContains(t, err, `filter ""`)
		require.ErrorContains(t, err, "enable_message_ordering false")
	}
}
