package push

import (
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// Pub/Sub sends one message of a key at a time, but sends it again when its request took too long.
func TestPushOnePerKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		first, _ := b.subscribe(transport.SubscriberConfig{Ordered: true})
		second, _ := b.subscribe(transport.SubscriberConfig{Ordered: true})
		next := func() *message.Message {
			select {
			case msg := <-first:
				return msg
			case msg := <-second:
				return msg
			}
		}
		one := b.push("1", "k")
		running := next()
		two, other, free := b.push("2", "k"), b.push("other", "j"), b.push("free", "")
		for range 2 {
			msg := next()
			require.NotEqual(t, "event-2", msg.UUID)
			msg.Ack()
		}
		require.Equal(t, http.StatusNoContent, (<-other).Code)
		require.Equal(t, http.StatusNoContent, (<-free).Code)
		running.Ack()
		require.Equal(t, http.StatusNoContent, (<-one).Code)
		running = next()
		require.Equal(t, "event-2", running.UUID)

		began := time.Now()
		require.Equal(t, http.StatusTooManyRequests, (<-b.push("3", "k")).Code)
		require.Equal(t, 15*time.Second, time.Since(began))
		running.Ack()
		require.Equal(t, http.StatusNoContent, (<-two).Code)
		require.Empty(t, b.server.targets["topic.c"].lanes.taken)
	})
}

// Calls of Subscribe for one subscription share its requests, and one that is busy leaves them to the others.
func TestPushSharesAmongSubscribers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		var mu sync.Mutex
		got := map[string]int{}
		stop := make(chan struct{})
		defer close(stop)
		for _, name := range []string{"busy", "free"} {
			messages, _ := b.subscribe(transport.SubscriberConfig{Concurrency: 1})
			handle(messages, func(msg *message.Message) {
				mu.Lock()
				got[name]++
				mu.Unlock()
				if name == "busy" {
					<-stop
				}
				msg.Ack()
			})
		}
		for range 10 {
			b.push("1", "")
			synctest.Wait()
		}
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, map[string]int{"busy": 1, "free": 9}, got)
	})
}

// What waited for a handler of one call of Subscribe went back to Pub/Sub as a failure when that one closed, though the
// other went on.
func TestPushSubscriberLeavesItsWaitingToTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		stays, _ := b.subscribe(transport.SubscriberConfig{Concurrency: 1})
		goes, closeAndWait := b.subscribe(transport.SubscriberConfig{Concurrency: 1})
		b.push("1", "")
		b.push("2", "")
		running, last := <-stays, <-goes
		third, fourth := b.push("3", ""), b.push("4", "") // one waits for each
		synctest.Wait()
		began := time.Now()
		closed := make(chan struct{})
		go func() { closeAndWait(); close(closed) }()
		synctest.Wait()
		last.Ack()
		<-closed
		require.Zero(t, time.Since(began), "Close waited for messages of the other")
		running.Ack()
		handle(stays, func(msg *message.Message) { msg.Ack() })
		require.Equal(t, http.StatusNoContent, (<-third).Code)
		require.Equal(t, http.StatusNoContent, (<-fourth).Code)
		require.Zero(t, b.count(outcomeClosing))
	})
}
