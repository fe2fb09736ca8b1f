package transporttest

import (
	"path"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// runWatermill runs Watermill's universal suite: unordered, and with a key on each message where the transport keeps
// order. Order is per key here, and Watermill's messages have none.
func runWatermill(t *testing.T, factory Factory, config Config) {
	features := tests.Features{
		ConsumerGroups:      true,
		Persistent:          true, // over several instances, which is what the suite means by it
		ExactlyOnceDelivery: config.ExactlyOnce,
		ForceShort:          config.Short,
	}
	suite := func(name string, features tests.Features) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := ends{factory: factory, ordered: features.GuaranteedOrder}
			tests.TestPubSub(t, features, e.single, e.group)
			if !features.ExactlyOnceDelivery {
				return
			}
			features.ExactlyOnceDelivery = false // with it the suite leaves these out
			for name, test := range map[string]func(*testing.T, tests.TestContext, tests.PubSubConstructor){
				"ContinueAfterSubscribeClose": tests.TestContinueAfterSubscribeClose,
				"ConcurrentClose":             tests.TestConcurrentClose,
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					test(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, e.single)
				})
			}
		})
	}
	suite("Unordered", features)
	if factory(t).Features().Ordered && !config.unordered() {
		// A broker that delivers a message of a key again delivers what follows again, too, once acked or not.
		features.GuaranteedOrder, features.ExactlyOnceDelivery = true, false
		suite("Ordered", features)
	}
}

// ends makes the two ends that Watermill's suite works with.
type ends struct {
	factory Factory
	ordered bool
}

// single gives each test a consumer of its own: in one group of Kafka's those of all tests would rebalance one another.
func (e ends) single(t *testing.T) (message.Publisher, message.Subscriber) {
	return e.group(t, "suite-"+path.Base(t.Name()))
}

func (e ends) group(t *testing.T, consumer string) (message.Publisher, message.Subscriber) {
	tr := e.factory(t)
	p, err := tr.Publisher()
	require.NoError(t, err)
	s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: consumer, Ordered: e.ordered})
	require.NoError(t, err)
	if e.ordered {
		p = keyed{p, keyOf(t.Name())}
	}
	return p, s
}

// keyed gives each message a key.
type keyed struct {
	message.Publisher
	key func(*message.Message) string
}

func (p keyed) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		transport.SetKey(msg, p.key(msg))
	}
	return p.Publisher.Publish(topic, msgs...)
}

// keyOf returns the keys for a test of the suite: 16 for all messages alike, but two tests expect order among the
// messages of one payload.
func keyOf(test string) func(*message.Message) string {
	if strings.Contains(test, "/TestNoAck/") || strings.Contains(test, "/TestPublishSubscribeInOrder/") {
		return func(msg *message.Message) string { return string(msg.Payload) }
	}
	return func(msg *message.Message) string { return msg.UUID[len(msg.UUID)-1:] }
}
