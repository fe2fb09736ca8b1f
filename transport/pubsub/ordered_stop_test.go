package pubsub_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	vkit "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

var orderedConsumer = transport.SubscriberConfig{Consumer: "c", Ordered: true}

// TestOrderedAtCleanStops: a member of an ordered consumer stops while it handles an event and holds later ones of its key.
// It gave them back in random order. And it ended its stream first, after which Google's emulator sent the key's next event
// to another member, while the first event was still handled.
func TestOrderedAtCleanStops(t *testing.T) {
	t.Parallel()
	options := genuine(t)

	t.Run("what it holds goes back in order", func(t *testing.T) {
		t.Parallel()
		topic := devtest.Topic(t)
		first := connect(t, pubsub.Config{ClientOptions: options})
		subscriber, messages := subscribe(t, first, topic, orderedConsumer)
		const events = 20
		publishAll(t, batcher(t, first), topic, append(keyed(1, events), newMessage("another key", "last")))
		var running *message.Message
		for msg := next(t, messages); ; msg = next(t, messages) { // until all are here
			if transport.Key(msg) == "another key" {
				msg.Ack()
				break
			}
			running = msg
		}
		if running == nil {
			running = next(t, messages)
		}
		closed := stop(t, subscriber, messages)
		running.Ack()
		<-closed

		_, messages = subscribe(t, connect(t, pubsub.Config{ClientOptions: options}), topic, orderedConsumer)
		for i := 1; i < events; i++ {
			msg := next(t, messages)
			require.Equal(t, fmt.Sprintf("%04d", i), string(msg.Payload))
			msg.Ack()
		}
	})

	t.Run("the next event waits for the one that is handled", func(t *testing.T) {
		t.Parallel()
		topic := devtest.Topic(t)
		first := connect(t, pubsub.Config{ClientOptions: options, DrainTimeout: 4 * wait}) // the handler is not given up
		subscriber, messages := subscribe(t, first, topic, orderedConsumer)
		events := keyed(1, 2)
		publishAll(t, batcher(t, first), topic, events[:1])
		running := next(t, messages)
		second := connect(t, pubsub.Config{ClientOptions: options})
		_, others := subscribe(t, second, topic, orderedConsumer)
		probe := func() { // returns when the second member has handled an event that was published now
			t.Helper()
			deadline := time.Now().Add(wait)
			for {
				require.True(t, time.Now().Before(deadline), "the second member gets nothing")
				one := newMessage(fmt.Sprint("probe-", rand.Int64()), "probe")
				publishAll(t, batcher(t, second), topic, []*message.Message{one})
				select {
				case msg := <-others:
					require.Equal(t, "probe", string(msg.Payload), "an event came while the earlier one of its key is handled")
					msg.Ack()
					if msg.UUID == one.UUID {
						return
					}
				case <-time.After(100 * time.Millisecond):
				}
			}
		}
		go func() {
			for msg := range messages {
				msg.Ack()
			}
		}()
		probe()
		closed := make(chan error, 1)
		go func() { closed <- subscriber.Close() }()
		probe()
		publishAll(t, batcher(t, second), topic, events[1:])
		probe()
		running.Ack()
		require.NoError(t, <-closed)
		for msg := next(t, others); ; msg = next(t, others) {
			msg.Ack()
			if msg.UUID == events[1].UUID {
				break
			}
		}
	})
}

// stop closes the subscriber, and returns when it takes nothing more.
func stop(t *testing.T, s message.Subscriber, messages <-chan *message.Message) (closed chan struct{}) {
	closed = make(chan struct{})
	go func() {
		defer close(closed)
		require.NoError(t, s.Close())
	}()
	for range messages { // closed
		require.Fail(t, "a message came")
	}
	return closed
}

// TestEmulatorAndTheOrderOfKeys shows what Google's emulator does without this transport. If it fails, the emulator is
// better than guarantees.md says.
func TestEmulatorAndTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	client := rawClient(t, genuine(t)).SubscriptionAdminClient
	first := connect(t, pubsub.Config{ClientOptions: genuine(t)})

	t.Run("a nacked event goes behind a later one", func(t *testing.T) {
		t.Parallel()
		topic := devtest.Topic(t)
		require.NoError(t, initialize(t, first, topic, orderedConsumer))
		pull := func() *pubsubpb.ReceivedMessage {
			got, err := client.Pull(t.Context(), &pubsubpb.PullRequest{Subscription: subscriptionName(topic, "c"), MaxMessages: 1})
			require.NoError(t, err)
			require.Len(t, got.ReceivedMessages, 1)
			return got.ReceivedMessages[0]
		}
		events := keyed(1, 2)
		publishAll(t, batcher(t, first), topic, events[:1])
		got := pull()
		publishAll(t, batcher(t, first), topic, events[1:])
		require.NoError(t, client.ModifyAckDeadline(t.Context(), &pubsubpb.ModifyAckDeadlineRequest{Subscription: subscriptionName(topic, "c"), AckIds: []string{got.AckId}}))
		require.Equal(t, "0001", string(pull().Message.Data))
	})

	t.Run("a later event goes to another stream when that of an unsettled one ends", func(t *testing.T) {
		t.Parallel()
		topic := devtest.Topic(t)
		require.NoError(t, initialize(t, first, topic, orderedConsumer))
		events := keyed(1, 2)
		publishAll(t, batcher(t, first), topic, events[:1])
		leaseFirst(t, client, topic)
		publishAll(t, batcher(t, first), topic, events[1:])
		_, messages := subscribe(t, first, topic, orderedConsumer)
		msg := next(t, messages)
		require.Equal(t, "0001", string(msg.Payload))
		msg.Ack()
	})
}

// leaseFirst receives event 0000 by a stream that it ends, as a killed process does. It returns the ack ID of the event, whose
// lease goes on.
func leaseFirst(t *testing.T, client *vkit.SubscriptionAdminClient, topic string) string {
	stream, err := client.StreamingPull(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pubsubpb.StreamingPullRequest{Subscription: subscriptionName(topic, "c"), StreamAckDeadlineSeconds: 60}))
	got, err := stream.Recv()
	require.NoError(t, err)
	require.Len(t, got.ReceivedMessages, 1)
	require.Equal(t, "0000", string(got.ReceivedMessages[0].Message.Data))
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.Error(t, err, "the service ends its side, too")
	return got.ReceivedMessages[0].AckId
}

// TestOrderedClaimKeepsTheOrderOfDelivery: a claim with Ordered does not know of an event that was not delivered yet. So its
// handler gets a later event of the key first when the emulator delivers that one first. Each event has one effect.
func TestOrderedClaimKeepsTheOrderOfDelivery(t *testing.T) {
	t.Parallel()
	options := genuine(t)
	client := rawClient(t, options).SubscriptionAdminClient
	tr, topic := connect(t, pubsub.Config{ClientOptions: options}), devtest.Topic(t)
	require.NoError(t, initialize(t, tr, topic, orderedConsumer))
	events := keyed(1, 3)
	publishAll(t, batcher(t, tr), topic, events[:1])
	leased := leaseFirst(t, client, topic)
	publishAll(t, batcher(t, tr), topic, events[1:2])

	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	require.NoError(t, claim.Migrate(t.Context(), pool, schema))
	c, err := claim.New(claim.NewPostgresStore(pool, claim.Schema(schema)), claim.Config{Service: "labour", Ordered: true})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: wait}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(c.Middleware)
	s, err := tr.Subscriber(orderedConsumer)
	require.NoError(t, err)
	handled := make(chan string, 10)
	router.AddConsumerHandler("c", topic, s, func(msg *message.Message) error {
		handled <- string(msg.Payload)
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(t.Context()) }()
	require.Equal(t, "0001", receive(t, handled))
	require.NoError(t, client.ModifyAckDeadline(t.Context(), &pubsubpb.ModifyAckDeadlineRequest{Subscription: subscriptionName(topic, "c"), AckIds: []string{leased}}))
	require.Equal(t, "0000", receive(t, handled))
	publishAll(t, batcher(t, tr), topic, events[2:])
	require.Equal(t, "0002", receive(t, handled))
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	require.Empty(t, handled, "an event was handled twice")
}

func receive(t *testing.T, from <-chan string) string {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(wait):
		require.Fail(t, "nothing was handled")
		return ""
	}
}
