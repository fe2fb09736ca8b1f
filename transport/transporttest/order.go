package transporttest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// lanes records, for each key, the messages in the order in which they were first delivered, and fails when two of one
// key are handled at once.
type lanes struct {
	mu      sync.Mutex
	first   map[string][]string
	seen    map[string]bool
	running map[string]bool
	errs    []string
	total   int
	want    int
	all     chan struct{}
}

func newLanes(want int) *lanes {
	return &lanes{first: map[string][]string{}, seen: map[string]bool{}, running: map[string]bool{}, want: want, all: make(chan struct{})}
}

func (l *lanes) enter(msg *message.Message) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := transport.Key(msg)
	if l.running[key] {
		l.errs = append(l.errs, fmt.Sprintf("%s came while another message of key %s was handled", msg.Payload, key))
	}
	l.running[key] = true
	first = !l.seen[msg.UUID]
	l.seen[msg.UUID] = true
	return first
}

// leave must come before the ack. A message counts when it was acked for the first time.
func (l *lanes) leave(msg *message.Message, acked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := transport.Key(msg)
	l.running[key] = false
	if !acked {
		return
	}
	for _, payload := range l.first[key] {
		if payload == string(msg.Payload) {
			return
		}
	}
	l.first[key] = append(l.first[key], string(msg.Payload))
	l.total++
	if l.total == l.want {
		close(l.all)
	}
}

func numbered(keys, perKey int) []*message.Message {
	var msgs []*message.Message
	for i := range perKey {
		for k := range keys {
			msgs = append(msgs, newMessage(fmt.Sprint("key-", k), fmt.Sprintf("%03d", i)))
		}
	}
	return msgs
}

func (l *lanes) check(e *env, keys, perKey int) {
	e.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Empty(e, l.errs)
	for k := range keys {
		var want []string
		for i := range perKey {
			want = append(want, fmt.Sprintf("%03d", i))
		}
		require.Equal(e, want, l.first[fmt.Sprint("key-", k)], "key %d", k)
	}
}

// handle runs a handler for each message, concurrently, until messages ends.
func handle(wg *sync.WaitGroup, messages <-chan *message.Message, handler func(*message.Message)) {
	wg.Go(func() {
		for msg := range messages {
			wg.Go(func() { handler(msg) })
		}
	})
}

func order(e *env) {
	const keys, perKey = 8, 25
	s := e.consumer(transport.SubscriberConfig{Consumer: "c", Ordered: true})
	l := newLanes(keys * perKey)
	var handlers sync.WaitGroup
	handle(&handlers, e.messages(s), func(msg *message.Message) {
		l.enter(msg)
		l.leave(msg, true)
		msg.Ack()
	})
	msgs := numbered(keys, perKey)
	for i, err := range e.batcher().PublishBatch(e.Context(), e.topic, msgs) {
		require.NoError(e, err, "message %d", i)
	}
	e.done(l.all, "all messages")
	require.NoError(e, s.Close())
	handlers.Wait()
	l.check(e, keys, perKey)
}

// orderNacks: a nacked message comes back before the later ones of its key.
func orderNacks(e *env) {
	const keys, perKey = 4, 8
	s := e.consumer(transport.SubscriberConfig{Consumer: "c", Ordered: true})
	l := newLanes(keys * perKey)
	var handlers sync.WaitGroup
	handle(&handlers, e.messages(s), func(msg *message.Message) {
		first := l.enter(msg)
		if first && msg.Payload[2]%3 == 0 {
			l.leave(msg, false)
			msg.Nack()
			return
		}
		l.leave(msg, true)
		msg.Ack()
	})
	e.publish(numbered(keys, perKey)...)
	e.done(l.all, "all messages")
	require.NoError(e, s.Close())
	handlers.Wait()
	l.check(e, keys, perKey)
}

// orderAfterFailure: the messages of a key that were held back behind one that failed arrive in order when they are
// published again after it, however often that takes.
func orderAfterFailure(e *env) {
	messages := e.subscribe(transport.SubscriberConfig{Consumer: "c", Ordered: true})
	const n = 30
	var left []*message.Message
	for i := range n {
		left = append(left, newMessage("k", fmt.Sprintf("%03d", i)))
	}
	for range 3 { // in between, one in the middle of what is left cannot be sent
		middle := len(left) / 2
		attempt := slices.Insert(slices.Clone(left), middle, e.tooLarge("k"))
		results := e.batcher().PublishBatch(e.Context(), e.topic, attempt)
		for i, err := range results {
			switch {
			case i < middle:
				require.NoError(e, err)
			case i == middle:
				require.ErrorIs(e, err, transport.ErrLimit)
			default:
				require.ErrorIs(e, err, transport.ErrNotSent)
			}
		}
		left = left[middle:]
	}
	e.publish(left...)
	for i := range n {
		msg := e.next(messages)
		require.Equal(e, fmt.Sprintf("%03d", i), string(msg.Payload))
		msg.Ack()
	}
}

func otherKeys(e *env) {
	messages := e.subscribe(transport.SubscriberConfig{Consumer: "c", Ordered: true, Concurrency: 1})
	e.publish(newMessage("a", "a1"))
	msg := e.next(messages)
	require.Equal(e, "a1", string(msg.Payload))
	e.publish(newMessage("a", "a2"), newMessage("b", "b1"), newMessage("", "free"))
	transport.DeliveryFrom(msg.Context()).RetryAfter(3 * time.Second)
	nacked := time.Now()
	msg.Nack()

	var got []string
	for len(got) < 4 {
		msg := e.next(messages)
		got = append(got, string(msg.Payload))
		if string(msg.Payload) == "a1" {
			require.GreaterOrEqual(e, time.Since(nacked), 3*time.Second)
		}
		msg.Ack()
	}
	require.ElementsMatch(e, []string{"b1", "free"}, got[:2])
	require.Equal(e, []string{"a1", "a2"}, got[2:])
}
