package pubsub_test

import (
	"bytes"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// A modeCase is run for each way that messages come by; only the configuration differs.
type modeCase struct {
	t      *testing.T
	mode   string
	topic  string
	broker *pubsub.Transport
}

// eachMode runs the same test by pull and by both forms of push, on the broker that the options lead to.
func eachMode(t *testing.T, broker func(testing.TB) []option.ClientOption, run func(*modeCase)) {
	t.Parallel()
	for mode, push := range map[string]*pubsub.Push{
		"pull":           nil,
		"push":           {AllowUnauthenticated: true},
		"push unwrapped": {AllowUnauthenticated: true, Unwrapped: true},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			options := broker(t)
			server := httptest.NewUnstartedServer(nil)
			config := pubsub.Config{ClientOptions: options, DrainTimeout: 10 * time.Second}
			config.Subscription.AckDeadline = 30 * time.Second // a busy machine is late, and the server delivers again what is not acked by then; less than wait, in which it shall do so with what a broken stream had
			if push != nil {
				push.Endpoint = "http://" + server.Listener.Addr().String() + "/push"
				config.Subscription.Push = push
			}
			tr := connect(t, config)
			server.Config.Handler = tr.PushHandler()
			server.Start()
			t.Cleanup(server.Close)
			t.Cleanup(func() { require.NoError(t, tr.Close()) }) // before the server's, as in a service
			run(&modeCase{t: t, mode: mode, topic: devtest.Topic(t), broker: tr})
		})
	}
}

// route runs a router with one handler until the test ends, and returns it.
func (c *modeCase) route(config transport.SubscriberConfig, handler message.NoPublishHandlerFunc) *message.Router {
	c.t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: wait}, watermill.NopLogger{})
	require.NoError(c.t, err)
	s, err := c.broker.Subscriber(config)
	require.NoError(c.t, err)
	router.AddConsumerHandler(config.Consumer, c.topic, s, handler)
	devtest.Run(c.t, router)
	return router
}

func (c *modeCase) publish(msgs ...*message.Message) {
	c.t.Helper()
	require.NoError(c.t, batcher(c.t, c.broker).Publish(c.topic, msgs...))
}

// received collects what handlers got.
type received struct {
	mu   sync.Mutex
	msgs []*message.Message
}

// add returns how many there were with the same ID before.
func (r *received) add(msg *message.Message) (before int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.msgs {
		if other.UUID == msg.UUID {
			before++
		}
	}
	r.msgs = append(r.msgs, msg)
	return before
}

func (r *received) all() []*message.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*message.Message(nil), r.msgs...)
}

func (r *received) await(t *testing.T, n int) []*message.Message {
	t.Helper()
	require.Eventually(t, func() bool { return len(r.all()) >= n }, wait, 5*time.Millisecond)
	return r.all()
}

func TestModesCarryTheSame(t *testing.T) {
	eachMode(t, genuine, func(c *modeCase) {
		var got received
		c.route(transport.SubscriberConfig{Consumer: "c"}, func(msg *message.Message) error {
			got.add(msg)
			return nil
		})
		small := newMessage("key-1", "\x00 päyload") // no "\xff", which the emulator's unwrapped push turns into U+FFFD
		small.Metadata["name"] = "value"
		small.Metadata["empty"] = ""
		small.Metadata["content-type"] = "application/cloudevents+json" // other content types are lost in an unwrapped push
		large := newMessage("", "")
		large.Payload = bytes.Repeat([]byte("0123456789"), 999_000)
		c.publish(small, large)
		for _, msg := range got.await(c.t, 2) {
			want := small
			if msg.UUID == large.UUID {
				want = large
			}
			require.Equal(c.t, want.UUID, msg.UUID)
			require.True(c.t, bytes.Equal(want.Payload, msg.Payload), "payload of %d bytes", len(msg.Payload))
			if c.mode == "push" {
				delete(want.Metadata, transport.KeyMetadata) // Google's emulator leaves it out of the envelope
			}
			require.Equal(c.t, want.Metadata, msg.Metadata)
		}
	})
}

func TestModesRedeliver(t *testing.T) {
	eachMode(t, emulator, func(c *modeCase) {
		var got received
		c.route(transport.SubscriberConfig{Consumer: "c"}, func(msg *message.Message) error {
			if got.add(msg) < 2 {
				return assert.AnError
			}
			return nil
		})
		c.publish(newMessage("", "1"), newMessage("", "2"))
		got.await(c.t, 6)
		require.Never(c.t, func() bool { return len(got.all()) > 6 }, 1500*time.Millisecond, 50*time.Millisecond, "came after their acks")
	})
}

// TestModesRetryInPlace: contention holds the message for as long as it asks, and no worker.
func TestModesRetryInPlace(t *testing.T) {
	eachMode(t, emulator, func(c *modeCase) {
		const delay = 1500 * time.Millisecond
		var got received
		var mu sync.Mutex
		var at []time.Time
		c.route(transport.SubscriberConfig{Consumer: "c", Concurrency: 1}, func(msg *message.Message) error {
			before := got.add(msg)
			if string(msg.Payload) != "contended" {
				return nil
			}
			mu.Lock()
			at = append(at, time.Now())
			mu.Unlock()
			if before == 0 {
				transport.DeliveryFrom(msg.Context()).RetryAfter(delay)
				return assert.AnError
			}
			return nil
		})
		c.publish(newMessage("", "contended"))
		got.await(c.t, 1)
		c.publish(newMessage("", "other"))
		msgs := got.await(c.t, 3)
		require.Equal(c.t, "other", string(msgs[1].Payload))
		mu.Lock()
		defer mu.Unlock()
		require.Len(c.t, at, 2)
		require.GreaterOrEqual(c.t, at[1].Sub(at[0]), delay)
	})
}

// TestModesDrain: a handler that runs while its subscriber closes finishes, its ack arrives, and the message is not
// delivered to the subscriber that comes after.
func TestModesDrain(t *testing.T) {
	eachMode(t, emulator, func(c *modeCase) {
		config := transport.SubscriberConfig{Consumer: "c"}
		s, messages := subscribe(c.t, c.broker, c.topic, config)
		c.publish(newMessage("", "1"))
		msg := next(c.t, messages)
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		_, open := <-messages
		require.False(c.t, open)
		_, again := subscribe(c.t, c.broker, c.topic, config)
		require.NoError(c.t, msg.Context().Err())
		select {
		case <-closed:
			require.Fail(c.t, "Close returned while a handler ran")
		default:
		}
		msg.Ack()
		require.NoError(c.t, <-closed)
		c.publish(newMessage("", "2"))
		second := next(c.t, again)
		require.Equal(c.t, "2", string(second.Payload))
		second.Ack()
		select {
		case msg := <-again:
			require.Fail(c.t, "delivered again", "%s", msg.Payload)
		case <-time.After(1500 * time.Millisecond): // the emulator pushes again what was not acked after 1 s
		}
	})
}

// TestModesKeepOrder: per key, over nacks, with never two of a key at once.
func TestModesKeepOrder(t *testing.T) {
	eachMode(t, emulator, func(c *modeCase) {
		const keys, perKey = 4, 6
		var mu sync.Mutex
		running := map[string]bool{}
		done := map[string][]string{}
		var got received
		c.route(transport.SubscriberConfig{Consumer: "c", Ordered: true}, func(msg *message.Message) error {
			key, number, _ := strings.Cut(string(msg.Payload), "/") // not transport.Key: the emulator's envelopes have none
			before := got.add(msg)
			mu.Lock()
			defer mu.Unlock()
			assert.False(c.t, running[key], "two of %s at once", key)
			running[key] = true
			mu.Unlock()
			runtime.Gosched()
			mu.Lock()
			running[key] = false
			if n, _ := strconv.Atoi(number); n == 2 && before == 0 {
				return assert.AnError
			}
			done[key] = append(done[key], number)
			return nil
		})
		var want []string
		var msgs []*message.Message
		for i := range perKey {
			want = append(want, strconv.Itoa(i))
			for k := range keys {
				key := "key-" + strconv.Itoa(k)
				msgs = append(msgs, newMessage(key, key+"/"+strconv.Itoa(i)))
			}
		}
		c.publish(msgs...)
		require.Eventually(c.t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			for k := range keys {
				if len(done["key-"+strconv.Itoa(k)]) < perKey {
					return false
				}
			}
			return true
		}, 2*wait, 5*time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		for k := range keys {
			require.Equal(c.t, want, done["key-"+strconv.Itoa(k)], "key %d", k)
		}
	})
}
