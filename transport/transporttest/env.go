package transporttest

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// env is what one case works with: a topic of its own, and a transport.
type env struct {
	*testing.T
	factory   Factory
	transport transport.Transport
	id        string // of the case
	topic     string
	config    Config
	wait      time.Duration
}

func newEnv(t *testing.T, factory Factory, config Config) *env {
	id := watermill.NewShortUUID()
	return &env{T: t, factory: factory, transport: factory(t), id: id, topic: "topic-" + id, wait: config.Wait, config: config}
}

// consumer returns a subscriber that is closed with the test, with topic made known to its consumer. The case has its consumers
// for itself: in one group of Kafka's those of all cases would rebalance one another.
func (e *env) consumer(config transport.SubscriberConfig) message.Subscriber {
	e.Helper()
	return e.consumerOf(e.transport, config)
}

func (e *env) consumerOf(t transport.Transport, config transport.SubscriberConfig) message.Subscriber {
	e.Helper()
	config.Consumer += "-" + e.id
	s, err := t.Subscriber(config)
	require.NoError(e, err)
	e.Cleanup(func() { require.NoError(e, s.Close()) })
	initializer, ok := s.(message.SubscribeInitializer)
	require.True(e, ok, "%T is no message.SubscribeInitializer", s)
	require.NoError(e, initializer.SubscribeInitialize(e.topic))
	return s
}

// subscribe is consumer and one Subscribe.
func (e *env) subscribe(config transport.SubscriberConfig) <-chan *message.Message {
	e.Helper()
	return e.messages(e.consumer(config))
}

func (e *env) messages(s message.Subscriber) <-chan *message.Message {
	e.Helper()
	messages, err := s.Subscribe(e.Context(), e.topic)
	require.NoError(e, err)
	return messages
}

func (e *env) publisher() message.Publisher {
	e.Helper()
	p, err := e.transport.Publisher()
	require.NoError(e, err)
	return p
}

func (e *env) batcher() transport.BatchPublisher {
	e.Helper()
	return e.publisher().(transport.BatchPublisher)
}

func (e *env) publish(msgs ...*message.Message) {
	e.Helper()
	require.NoError(e, e.publisher().Publish(e.topic, msgs...))
}

// next returns the next message.
func (e *env) next(messages <-chan *message.Message) *message.Message {
	e.Helper()
	select {
	case msg, ok := <-messages:
		require.True(e, ok, "the subscription ended")
		return msg
	case <-time.After(e.wait):
		require.Fail(e, "no message came", "waited %s", e.wait)
		return nil
	}
}

// nothing fails when a message comes within d. It proves absence for that long only, so it is used where a message
// would come at once.
func (e *env) nothing(messages <-chan *message.Message, d time.Duration) {
	e.Helper()
	select {
	case msg, ok := <-messages:
		if ok {
			require.Fail(e, "unexpected message", "%s %s", msg.UUID, msg.Payload)
		}
	case <-time.After(d):
	}
}

// done waits for c to be closed.
func (e *env) done(c <-chan struct{}, what string) {
	e.Helper()
	select {
	case <-c:
	case <-time.After(e.wait):
		require.Fail(e, "timed out", "waiting for %s", what)
	}
}

// newMessage returns a message with a new ID.
func newMessage(key, payload string) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
	transport.SetKey(msg, key)
	return msg
}
