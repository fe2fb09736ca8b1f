package pubsub_test

import (
	"context"
	"sync"
	"testing"
	"time"

	gcp "cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-googlecloud/v2/pkg/googlecloud"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestRouterShutdown: a process shuts down while a handler of its router runs, and another process consumes the same
// subscription. The handler runs once. With watermill-googlecloud it runs twice, in both processes at the same time:
// that the test sees it is what makes the first half worth something.
func TestRouterShutdown(t *testing.T) {
	t.Parallel()
	brokers := map[string][]option.ClientOption{"emulator": emulator(t)}
	_, brokers["pstest"] = fake(t)
	for broker, options := range brokers {
		ours := func(t *testing.T) message.Subscriber {
			s, err := connect(t, pubsub.Config{ClientOptions: options}).Subscriber(transport.SubscriberConfig{Consumer: "c"})
			require.NoError(t, err)
			return s
		}
		theirs := func(t *testing.T) message.Subscriber {
			s, err := googlecloud.NewSubscriber(googlecloud.SubscriberConfig{
				ProjectID:                project,
				ClientOptions:            options,
				GenerateSubscriptionName: func(topic string) string { return topic + ".c" },
			}, watermill.NopLogger{})
			require.NoError(t, err)
			return s
		}
		t.Run("Millrace on "+broker, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, 1, runsOverShutdown(t, ours, options, 3*time.Second))
		})
		t.Run("watermill-googlecloud on "+broker, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, 2, runsOverShutdown(t, theirs, options, 90*time.Second))
		})
	}
}

// runsOverShutdown returns how often the handlers of two routers have begun with a message, of which the first was
// closed meanwhile. It waits that long for a second one: the message may go back to the client that shuts down, which no
// longer reads, and come only when its lease ends.
func runsOverShutdown(t *testing.T, subscriber func(*testing.T) message.Subscriber, options []option.ClientOption, again time.Duration) int {
	topic := devtest.Topic(t)
	h := &overlap{begun: make(chan struct{}, 10), finish: make(chan struct{})}
	first := startRouter(t, topic, subscriber(t), h.handle)
	p := rawClient(t, options).Publisher(topic)
	defer p.Stop()
	publish := func(payload string) {
		_, err := p.Publish(t.Context(), &gcp.Message{Data: []byte(payload), Attributes: map[string]string{"_watermill_message_uuid": payload}}).Get(t.Context())
		require.NoError(t, err)
	}
	publish("slow")
	h.wait(t)

	second := startRouter(t, topic, subscriber(t), h.handle)
	closed := make(chan error, 1)
	go func() { closed <- first.Close() }()
	// The second router is at work when it has handled what came after; a message that went back comes about then.
	require.Eventually(t, func() bool {
		publish(watermill.NewUUID())
		_, others := h.counts()
		return others > 0
	}, wait, 100*time.Millisecond)
	select {
	case <-h.begun: // the slow one, again
	case <-time.After(again):
	}
	close(h.finish)
	require.NoError(t, <-closed)
	require.NoError(t, second.Close())
	runs, _ := h.counts()
	return runs
}

// overlap counts what handlers begin with, and keeps those of the slow message running.
type overlap struct {
	begun  chan struct{} // one for each handler of the slow message
	finish chan struct{}

	mu      sync.Mutex
	slowRun int
	others  int
}

func (o *overlap) handle(msg *message.Message) error {
	o.mu.Lock()
	slow := string(msg.Payload) == "slow"
	if slow {
		o.slowRun++
	} else {
		o.others++
	}
	o.mu.Unlock()
	if slow {
		o.begun <- struct{}{}
		<-o.finish
	}
	return nil
}

func (o *overlap) wait(t *testing.T) {
	t.Helper()
	select {
	case <-o.begun:
	case <-time.After(wait):
		require.Fail(t, "no message came")
	}
}

func (o *overlap) counts() (slow, others int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.slowRun, o.others
}

// startRouter returns a running router, to a test a process.
func startRouter(t *testing.T, topic string, subscriber message.Subscriber, handler message.NoPublishHandlerFunc) *message.Router {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 2 * time.Minute}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddConsumerHandler("handler", topic, subscriber, handler)
	running := make(chan error, 1)
	go func() { running <- router.Run(context.Background()) }()
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-running)
	})
	<-router.Running()
	return router
}
