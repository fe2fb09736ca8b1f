package transporttest

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// runWatermill runs Watermill's universal suite, and its tests for order with a key on each message: order is per key
// here, and Watermill's messages have none.
func runWatermill(t *testing.T, factory Factory, config Config) {
	features := tests.Features{
		ConsumerGroups: true,
		Persistent:     true, // over several instances, which is what the suite means by it
		ForceShort:     config.Short,
	}
	constructor := func(ordered bool) tests.ConsumerGroupPubSubConstructor {
		return func(t *testing.T, consumer string) (message.Publisher, message.Subscriber) {
			tr := factory(t)
			p, err := tr.Publisher()
			require.NoError(t, err)
			s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: consumer, Ordered: ordered})
			require.NoError(t, err)
			if ordered {
				p = payloadIsKey{p}
			}
			return p, s
		}
	}
	single := func(ordered bool) tests.PubSubConstructor {
		return func(t *testing.T) (message.Publisher, message.Subscriber) { return constructor(ordered)(t, "suite") }
	}
	tests.TestPubSub(t, features, single(false), constructor(false))

	if !factory(t).Features().Ordered {
		return
	}
	features.GuaranteedOrder = true
	for name, test := range map[string]func(*testing.T, tests.TestContext, tests.PubSubConstructor){
		"OrderedPublishSubscribeInOrder": tests.TestPublishSubscribeInOrder,
		"OrderedNoAck":                   tests.TestNoAck,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, single(true))
		})
	}
}

// payloadIsKey gives each message its payload as key.
type payloadIsKey struct{ message.Publisher }

func (p payloadIsKey) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		transport.SetKey(msg, string(msg.Payload))
	}
	return p.Publisher.Publish(topic, msgs...)
}
