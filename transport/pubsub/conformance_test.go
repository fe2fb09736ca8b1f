package pubsub_test

import (
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
	"github.com/millrace-go/millrace/transport/transporttest"
)

// The suites' subscriptions. What a broken stream had sent returns after the ack deadline, and Watermill's suite waits 15 s.
var (
	suiteSubscription = pubsub.SubscriptionConfig{AckDeadline: 10 * time.Second}
	suiteExactlyOnce  = pubsub.SubscriptionConfig{AckDeadline: 10 * time.Second, ExactlyOnce: true}
)

func TestConformance(t *testing.T)            { conformance(t, suiteSubscription) }
func TestConformanceExactlyOnce(t *testing.T) { conformance(t, suiteExactlyOnce) }

// conformance runs the suite on Google's emulator, or on its fake where there is no emulator.
func conformance(t *testing.T, config pubsub.SubscriptionConfig) {
	t.Parallel()
	if !devtest.IsReal(t, devstack.PubSub) {
		conformanceOfFake(t, config)
		return
	}
	options := emulator(t)
	transporttest.Run(t, func(t testing.TB) transport.Transport {
		return connect(t, pubsub.Config{ClientOptions: options, Subscription: config})
	}, transporttest.Config{ExactlyOnce: config.ExactlyOnce, DeleteTopic: deleteTopic(options), Cannot: emulatorCannot})
}

// conformanceOfFake keeps Google's in-process fake usable for the tests of services. It sends one message to each stream
// every 10 ms, for which it looks at all messages, and sorts them where order is kept: Watermill's thousands would take
// minutes of one core.
func conformanceOfFake(t *testing.T, config pubsub.SubscriptionConfig) {
	brokers := fakes()
	transporttest.Run(t, func(t testing.TB) transport.Transport {
		return connect(t, pubsub.Config{ClientOptions: brokers(t), Subscription: config})
	}, transporttest.Config{
		ExactlyOnce: config.ExactlyOnce,
		Short:       true,
		DeleteTopic: func(t testing.TB, topic string) { deleteTopic(brokers(t))(t, topic) },
		Cannot:      fakeCannot,
		Wait:        time.Minute,
	})
}

var emulatorCannot = map[transporttest.Ability]string{
	transporttest.OrderExactlyOnce: "the emulator (0.8.20) refuses every ack of such a subscription, also those of Google's own client",
}

var fakeCannot = map[transporttest.Ability]string{
	transporttest.CarryLargest: "pstest takes no message over 4 MB",
	transporttest.EndDeleted:   "pstest keeps the streams of a deleted subscription open",
}

// deleteTopic deletes the topic and its subscriptions, which Pub/Sub would keep.
func deleteTopic(options []option.ClientOption) func(testing.TB, string) {
	return func(t testing.TB, topic string) {
		t.Helper()
		client := rawClient(t, options)
		name := "projects/" + project + "/topics/" + topic
		var subscriptions []string
		for s, err := range client.TopicAdminClient.ListTopicSubscriptions(t.Context(), &pubsubpb.ListTopicSubscriptionsRequest{Topic: name}).All() {
			require.NoError(t, err)
			subscriptions = append(subscriptions, s)
		}
		require.NoError(t, client.TopicAdminClient.DeleteTopic(t.Context(), &pubsubpb.DeleteTopicRequest{Topic: name}))
		for _, s := range subscriptions {
			require.NoError(t, client.SubscriptionAdminClient.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: s}))
		}
	}
}

// fakes returns a server for each test: pstest does all its work under one lock, and looks at each message each time.
func fakes() func(testing.TB) []option.ClientOption {
	var mu sync.Mutex
	servers := map[string][]option.ClientOption{}
	return func(t testing.TB) []option.ClientOption {
		mu.Lock()
		defer mu.Unlock()
		options, ok := servers[t.Name()]
		if !ok {
			_, options = fake(t)
			servers[t.Name()] = options
		}
		return options
	}
}
