package memory

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/internal/tracing"
	"github.com/millrace-go/millrace/transport"
)

// broker holds the topics of all transports that are connected to it.
type broker struct {
	mu     sync.Mutex
	topics map[string]*topic
}

// topic fans each message out to its consumer groups. Its lock is held over the fan-out, so that all groups see
// the topic's messages in the same order. Lock order: broker.mu, topic.mu, group.mu.
type topic struct {
	mu     sync.Mutex
	groups map[string]*group
}

func (b *broker) topic(name string) *topic {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, ok := b.topics[name]
	if !ok {
		t = &topic{groups: map[string]*group{}}
		b.topics[name] = t
	}
	return t
}

// publish gives copies to every group; the caller keeps msgs. Groups share the copies and never change them.
func (t *topic) publish(ctx context.Context, msgs []*message.Message, propagator propagation.TextMapPropagator) {
	copies := make([]*message.Message, len(msgs))
	for i, msg := range msgs {
		copies[i] = cloneMessage(msg)
		if from := msg.Context(); trace.SpanContextFromContext(from).IsValid() {
			tracing.Inject(from, propagator, copies[i].Metadata)
		} else {
			tracing.Inject(ctx, propagator, copies[i].Metadata)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fanOut(copies)
}

// fanOut must be called with t.mu locked.
func (t *topic) fanOut(msgs []*message.Message) {
	for _, g := range t.groups {
		items := make([]*queued, len(msgs))
		for i, msg := range msgs {
			items[i] = &queued{msg: msg, key: transport.Key(msg)}
		}
		g.push(items)
	}
}

// keep publishes a dead letter. If the topic has no consumer, it keeps the letter for DeadLetterConsumer.
func (t *topic) keep(dead *message.Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.groups) == 0 {
		t.groups[transport.DeadLetterConsumer] = newGroup(false)
	}
	t.fanOut([]*message.Message{dead})
}

// cloneMessage is like message.Copy, but also copies the payload.
func cloneMessage(msg *message.Message) *message.Message {
	c := msg.Copy()
	c.Payload = bytes.Clone(msg.Payload)
	return c
}

// group returns the consumer's group and creates it at the first call.
func (t *topic) group(consumer string, ordered bool) (*group, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g, ok := t.groups[consumer]
	if !ok {
		g = newGroup(ordered)
		t.groups[consumer] = g
	}
	if g.queue.ordered != ordered {
		return nil, fmt.Errorf("consumer %q has Ordered %t on this topic already: want the same for all its subscribers", consumer, g.queue.ordered)
	}
	return g, nil
}

// group has the messages of one topic that one consumer has not finished.
type group struct {
	mu      sync.Mutex
	queue   *queue
	changed chan struct{} // closed and replaced when a message may have become available
}

func newGroup(ordered bool) *group {
	return &group{queue: newQueue(ordered), changed: make(chan struct{})}
}

func (g *group) push(items []*queued) {
	g.update(func(q *queue) {
		for _, item := range items {
			q.push(item)
		}
	})
}

func (g *group) update(f func(*queue)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g.queue)
	close(g.changed)
	g.changed = make(chan struct{})
}

// take waits for the next message. It returns nil when stop is closed.
func (g *group) take(stop <-chan struct{}) *queued {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		g.mu.Lock()
		item, due := g.queue.take(time.Now())
		changed := g.changed
		g.mu.Unlock()
		if item != nil {
			return item
		}
		var timer <-chan time.Time
		if !due.IsZero() {
			timer = time.After(time.Until(due))
		}
		select {
		case <-stop:
			return nil
		case <-changed:
		case <-timer:
		}
	}
}
