package transporttest

import (
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// collect acks messages of all channels until it has n different ones, and returns how often each came.
func (e *env) collect(n int, channels ...<-chan *message.Message) map[string]int {
	e.Helper()
	var mu sync.Mutex
	got := map[string]int{}
	all := make(chan struct{})
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for _, messages := range channels {
		readers.Go(func() {
			for {
				select {
				case msg, ok := <-messages:
					if !ok {
						return
					}
					mu.Lock()
					got[string(msg.Payload)]++
					if len(got) == n && got[string(msg.Payload)] == 1 {
						close(all)
					}
					mu.Unlock()
					msg.Ack()
				case <-stop:
					return
				}
			}
		})
	}
	e.done(all, fmt.Sprint(n, " messages"))
	close(stop)
	readers.Wait()
	return got
}

func (e *env) publishNumbers(n int) {
	e.Helper()
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = newMessage("", fmt.Sprint(i))
	}
	e.publish(msgs...)
}

func share(e *env) {
	config := transport.SubscriberConfig{Consumer: "c"}
	first := e.subscribe(config)
	second := e.messages(e.consumerOf(e.factory(e.T), config))
	n := 0
	more := func() {
		msgs := make([]*message.Message, 200)
		for i := range msgs {
			msgs[i] = newMessage("", fmt.Sprint(n+i))
		}
		e.publish(msgs...)
		n += len(msgs)
	}
	more()

	// Each subscriber gets some of them: at the latest when more come, where one was there sooner and took all.
	a := e.next(first)
	a.Ack() // before the second one has its share, which may take those in hand away from the first
	var b *message.Message
	for late := time.After(e.wait); b == nil; {
		select {
		case b = <-second:
			require.NotNil(e, b, "the subscription ended")
		case <-time.After(time.Second):
			more()
		case <-late:
			require.Fail(e, "the second subscriber got none", "of %d within %s", n, e.wait)
		}
	}
	b.Ack()
	require.NotEqual(e, a.UUID, b.UUID)
	got := e.collect(n-2, first, second)
	twice := 0
	for _, times := range got {
		twice += times - 1
	}
	// Delivery is at least once, but sharing that delivers everything to everyone is none.
	require.Less(e, twice, n/4, "messages that came twice")
}

func consumers(e *env) {
	first := e.subscribe(transport.SubscriberConfig{Consumer: "one"})
	second := e.subscribe(transport.SubscriberConfig{Consumer: "two"})
	e.publishNumbers(50)
	e.collect(50, first)
	e.collect(50, second)
}

func subscribeTwice(e *env) {
	s := e.consumer(transport.SubscriberConfig{Consumer: "c"})
	first, second := e.messages(s), e.messages(s)
	e.publishNumbers(50)
	e.collect(50, first, second)
	require.NoError(e, s.Close())
	for _, messages := range []<-chan *message.Message{first, second} {
		_, open := <-messages
		require.False(e, open)
	}
}

func concurrency(e *env) {
	messages := e.subscribe(transport.SubscriberConfig{Consumer: "c", Concurrency: 3})
	e.publishNumbers(10)
	held := []*message.Message{e.next(messages), e.next(messages), e.next(messages)}
	e.nothing(messages, 300*time.Millisecond)
	held[1].Ack()
	fourth := e.next(messages)
	e.nothing(messages, 100*time.Millisecond)
	held[0].Nack() // a nack makes room as well
	fifth := e.next(messages)
	for _, msg := range []*message.Message{held[2], fourth, fifth} {
		msg.Ack()
	}
}

func isolation(e *env) {
	first := e.subscribe(transport.SubscriberConfig{Consumer: "one"})
	second := e.subscribe(transport.SubscriberConfig{Consumer: "two"})
	published := newMessage("", "payload")
	published.Metadata["a"] = "1"
	e.publish(published)

	spoil := func(msg *message.Message) {
		msg.Payload[0] = 'X'
		msg.Metadata["a"] = "2"
	}
	spoil(published)
	msg := e.next(first)
	spoil(msg)
	msg.Nack()
	for _, messages := range []<-chan *message.Message{first, second} {
		msg := e.next(messages)
		require.Equal(e, "payload", string(msg.Payload))
		require.Equal(e, "1", msg.Metadata["a"])
		msg.Ack()
	}
}
