package pubsub_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	gcp "cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// deny refuses the calls that look up or create topics and subscriptions, after telling called.
func deny(called func(method string)) option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		name := method[strings.LastIndexByte(method, '/')+1:]
		if strings.HasPrefix(name, "Get") || strings.HasPrefix(name, "Create") {
			called(name)
			return status.Error(codes.PermissionDenied, "denied")
		}
		return invoke(ctx, method, request, reply, cc, opts...)
	}))
}

// TestMessageWithoutID: the layer above decides what becomes of a message that is none of ours.
func TestMessageWithoutID(t *testing.T) {
	t.Parallel()
	options := emulator(t)
	topic := devtest.Topic(t)
	_, messages := subscribe(t, connect(t, pubsub.Config{ClientOptions: options}), topic, transport.SubscriberConfig{Consumer: "c"})
	p := rawClient(t, options).Publisher(topic)
	defer p.Stop()
	_, err := p.Publish(t.Context(), &gcp.Message{Data: []byte("\xff no JSON")}).Get(t.Context())
	require.NoError(t, err)
	msg := next(t, messages)
	require.Empty(t, msg.UUID)
	require.Equal(t, "\xff no JSON", string(msg.Payload))
	require.Empty(t, msg.Metadata)
	msg.Ack()
}

// TestSubscriptionIsCreatedAgain: a deleted subscription ends the stream. The subscriber makes a new one and goes on.
func TestSubscriptionIsCreatedAgain(t *testing.T) {
	t.Parallel()
	options := genuine(t)
	topic := devtest.Topic(t)
	tr := connect(t, pubsub.Config{ClientOptions: options})
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
	p := batcher(t, tr)
	require.NoError(t, p.Publish(topic, newMessage("", "1")))
	next(t, messages).Ack()

	client := rawClient(t, options)
	name := "projects/" + project + "/subscriptions/" + topic + ".c"
	require.NoError(t, client.SubscriptionAdminClient.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: name}))
	require.Eventually(t, func() bool {
		_, err := client.SubscriptionAdminClient.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: name})
		return err == nil
	}, 2*wait, 50*time.Millisecond)
	require.NoError(t, p.Publish(topic, newMessage("", "2")))
	msg := next(t, messages)
	require.Equal(t, "2", string(msg.Payload))
	msg.Ack()
}

func TestSubscriptionSettings(t *testing.T) {
	t.Parallel()
	options := emulator(t)
	topic := devtest.Topic(t)
	tr := connect(t, pubsub.Config{ClientOptions: options, Subscription: pubsub.SubscriptionConfig{AckDeadline: 33 * time.Second}})
	subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "ordered", Ordered: true})
	client := rawClient(t, options)
	got, err := client.SubscriptionAdminClient.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{
		Subscription: "projects/" + project + "/subscriptions/" + topic + ".ordered",
	})
	require.NoError(t, err)
	require.True(t, got.EnableMessageOrdering)
	require.EqualValues(t, 33, got.AckDeadlineSeconds)
	require.Nil(t, got.ExpirationPolicy.GetTtl(), "expires")

	// Pub/Sub cannot change the order of a subscription, so the mismatch is told instead of ignored.
	for _, other := range []*pubsub.Transport{tr, connect(t, pubsub.Config{ClientOptions: options})} {
		s, err := other.Subscriber(transport.SubscriberConfig{Consumer: "ordered"})
		require.NoError(t, err)
		_, err = s.Subscribe(t.Context(), topic)
		require.ErrorContains(t, err, "enable_message_ordering true")
	}
}

// TestSubscriptionOfADeletedTopic: Pub/Sub keeps the subscription of a deleted topic, and it stays empty when a topic of
// that name is made again. Consuming from it in silence would lose events.
func TestSubscriptionOfADeletedTopic(t *testing.T) {
	t.Parallel()
	options := emulator(t)
	topic := devtest.Topic(t)
	subscribe(t, connect(t, pubsub.Config{ClientOptions: options}), topic, transport.SubscriberConfig{Consumer: "c"})
	client := rawClient(t, options)
	require.NoError(t, client.TopicAdminClient.DeleteTopic(t.Context(), &pubsubpb.DeleteTopicRequest{Topic: "projects/" + project + "/topics/" + topic}))
	s, err := connect(t, pubsub.Config{ClientOptions: options}).Subscriber(transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), topic)
	require.ErrorContains(t, err, "_deleted-topic_")
}

// TestAcksOfADrainReachTheService: when Close has returned, the acks of the handlers that it waited for have arrived.
// With ShutdownOptions.Timeout set, Google's client (v2.6.0) loses them.
func TestAcksOfADrainReachTheService(t *testing.T) {
	t.Parallel()
	for _, exactlyOnce := range []bool{false, true} {
		server, options := fake(t)
		topic := devtest.Topic(t)
		tr := connect(t, pubsub.Config{ClientOptions: options, Subscription: pubsub.SubscriptionConfig{ExactlyOnce: exactlyOnce}})
		s, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Concurrency: 5})
		var running []*message.Message
		for range 5 {
			require.NoError(t, batcher(t, tr).Publish(topic, newMessage("", "x")))
			running = append(running, next(t, messages))
		}
		var handlers sync.WaitGroup
		handlers.Go(func() {
			<-messages                    // closed when the intake has ended
			for i, msg := range running { // each ends once the service knows of those before
				assert.Eventually(t, func() bool { return acked(server) == i }, time.Minute, time.Millisecond)
				msg.Ack()
			}
		})
		require.NoError(t, s.Close())
		handlers.Wait() // for the last ack to be given, not for it to arrive
		for _, m := range server.Messages() {
			require.Equal(t, 1, m.Acks)
			require.Equal(t, 1, m.Deliveries)
		}
		require.Zero(t, tr.AckFailures())
	}
}

// acked counts the messages that the service has an ack of.
func acked(server *pstest.Server) (n int) {
	for _, m := range server.Messages() {
		if m.Acks > 0 {
			n++
		}
	}
	return n
}

// TestDrainTimeout: a handler that does not end is cancelled at the drain timeout, and Close returns.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	options := emulator(t)
	topic := devtest.Topic(t)
	const drain = 700 * time.Millisecond
	tr := connect(t, pubsub.Config{ClientOptions: options, DrainTimeout: drain})
	s, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, batcher(t, tr).Publish(topic, newMessage("", "1")))
	msg := next(t, messages)
	began := time.Now()
	require.NoError(t, s.Close())
	require.GreaterOrEqual(t, time.Since(began), drain)
	require.ErrorIs(t, msg.Context().Err(), context.Canceled)

	_, again := subscribe(t, connect(t, pubsub.Config{ClientOptions: options}), topic, transport.SubscriberConfig{Consumer: "c"})
	next(t, again).Ack()
}

// TestLeaseIsBounded: no lease is longer than AckDeadline, so that a killed consumer's messages return within it; with
// exactly-once delivery Google's client would take 60 s.
func TestLeaseIsBounded(t *testing.T) {
	t.Parallel()
	for _, exactlyOnce := range []bool{false, true} {
		server, options := fake(t)
		topic := devtest.Topic(t)
		tr := connect(t, pubsub.Config{ClientOptions: options, Subscription: pubsub.SubscriptionConfig{AckDeadline: 12 * time.Second, ExactlyOnce: exactlyOnce}})
		_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
		require.NoError(t, batcher(t, tr).Publish(topic, newMessage("", "1")))
		msg := next(t, messages)
		require.Eventually(t, func() bool { return len(server.Messages()[0].Modacks) > 0 }, wait, 10*time.Millisecond)
		for _, lease := range server.Messages()[0].Modacks {
			require.EqualValues(t, 12, lease.AckDeadline)
		}
		msg.Ack()
		require.Eventually(t, func() bool { return server.Messages()[0].Acks == 1 }, wait, 10*time.Millisecond)
		require.NoError(t, tr.Close())
		require.Zero(t, tr.AckFailures())
	}
}

// Google's client does not end while it waits to open a stream again; a service that shuts down in an outage of the
// broker must not wait with it. In a process of its own, because the client's goroutines live on for up to 30 s.
func TestCloseDuringAnOutage(t *testing.T) {
	t.Parallel()
	if os.Getenv(outage) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCloseDuringAnOutage$", "-test.v")
		child.Env = append(os.Environ(), outage+"=1")
		output, err := child.CombinedOutput()
		require.NoError(t, err, "%s", output)
		require.Contains(t, string(output), "--- PASS: TestCloseDuringAnOutage")
		return
	}
	server := pstest.NewServer()
	tr := connect(t, pubsub.Config{ClientOptions: plain(server.Addr)})
	sub, messages := subscribe(t, tr, devtest.Topic(t), transport.SubscriberConfig{Consumer: "consumer"})
	require.NoError(t, server.Close())
	closed := make(chan error, 1)
	time.AfterFunc(2*time.Second, func() { closed <- sub.Close() }) // by now it waits
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(12 * time.Second):
		t.Fatal("Close hangs")
	}
	_, open := <-messages
	require.False(t, open)
}

// TestPatternIsRefused: Pub/Sub has no subscription to several topics.
func TestPatternIsRefused(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	s, err := connect(t, pubsub.Config{ClientOptions: options}).Subscriber(transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), `^orders\..*`)
	require.ErrorIs(t, err, transport.ErrLimit)
	require.ErrorContains(t, err, "want the name of one topic for each handler")
}
