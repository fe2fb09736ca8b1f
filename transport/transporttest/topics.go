package transporttest

import (
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// manyTopics: many callers meet many topics for the first time at once.
func manyTopics(e *env) {
	const topics, callers = 20, 5
	s, err := e.transport.Subscriber(transport.SubscriberConfig{Consumer: "c"})
	require.NoError(e, err)
	e.Cleanup(func() { require.NoError(e, s.Close()) })
	p := e.publisher()
	var publishing sync.WaitGroup
	for i := range topics {
		topic := fmt.Sprint(e.topic, "-", i)
		subscribed := make(chan struct{})
		publishing.Go(func() {
			defer close(subscribed)
			messages, err := s.Subscribe(e.Context(), topic)
			if err != nil {
				e.Errorf("subscribe: %v", err)
				return
			}
			publishing.Go(func() {
				got := map[string]bool{}
				for msg := range messages {
					got[string(msg.Payload)] = true
					msg.Ack()
					if len(got) == callers {
						return
					}
				}
				e.Errorf("%d of %d messages came", len(got), callers)
			})
		})
		for c := range callers {
			publishing.Go(func() {
				<-subscribed // else what came before is nobody's
				if err := p.Publish(topic, newMessage("", fmt.Sprint(c))); err != nil {
					e.Errorf("publish: %v", err)
				}
			})
		}
	}
	all := make(chan struct{})
	go func() {
		defer close(all)
		publishing.Wait()
	}()
	e.done(all, "the messages of all topics")
}

// publisherOutlives: what is published to a topic that disappeared is an outage at most, and one that ends when a consumer
// makes sure that the topic is there.
func publisherOutlives(e *env) {
	p := e.publisher()
	require.NoError(e, p.Publish(e.topic, newMessage("k", "before")))
	e.config.DeleteTopic(e, e.topic)
	if err := p.Publish(e.topic, newMessage("k", "meanwhile")); err != nil {
		require.ErrorIs(e, err, transport.ErrUnavailable)
	}
	e.messages(e.consumer(transport.SubscriberConfig{Consumer: "c"}))
	e.publishAgain("after")
}

// subscriberOutlives: a subscriber goes on with the topic that took the place of one that disappeared.
func subscriberOutlives(e *env) {
	s := e.consumer(transport.SubscriberConfig{Consumer: "c"})
	messages := e.messages(s)
	e.publish(newMessage("", "before"))
	e.next(messages).Ack()
	e.config.DeleteTopic(e, e.topic)

	// What is published before the subscriber has noticed may be lost with the old subscription.
	for probe := 0; ; probe++ {
		require.Less(e, probe, 100, "the subscriber does not recover")
		e.publishAgain("probe")
		select {
		case msg := <-messages:
			msg.Ack()
			if string(msg.Payload) == "probe" {
				return
			}
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// publishAgain publishes as a relay does: until it works. An error must be an outage.
func (e *env) publishAgain(payload string) {
	e.Helper()
	require.Eventually(e, func() bool {
		err := e.publisher().Publish(e.topic, newMessage("k", payload))
		if err != nil {
			require.ErrorIs(e, err, transport.ErrUnavailable)
		}
		return err == nil
	}, e.wait, 50*time.Millisecond)
}
