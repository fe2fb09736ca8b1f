// Package publish publishes batches. Each message has its own result, and each key keeps its order across failures.
package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
	"github.com/millrace-go/millrace/transport/pubsub/internal/resource"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// batchDelay is how long Google's client waits for more messages before it sends an incomplete request. Its default of 10 ms suits
// callers that publish one message and continue. Our callers pass a batch and wait for all of it, so the delay only adds latency: once
// for the batch's last request, and once for each ordering key.
const batchDelay = time.Millisecond

// Publisher implements transport.BatchPublisher. It is safe for concurrent use.
type Publisher struct {
	client     *conn.Client
	resources  *resource.Registry
	propagator propagation.TextMapPropagator

	mu     sync.Mutex
	closed bool
	topics map[string]*topicPublisher
}

// New returns a publisher. The caller must stop it.
func New(client *conn.Client, resources *resource.Registry, propagator propagation.TextMapPropagator) *Publisher {
	return &Publisher{client: client, resources: resources, propagator: propagator, topics: map[string]*topicPublisher{}}
}

// Publish implements message.Publisher: it publishes all messages at once and joins their errors. It waits as long as Google's client
// retries, which is one minute for each request, or until the messages' own contexts end.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	return errors.Join(p.PublishBatch(context.Background(), topic, msgs)...)
}

// PublishBatch implements transport.BatchPublisher. After a message has failed or was given up, messages of other calls with its key get
// transport.ErrNotSent as well, until every message of the key that is in flight has its result.
//
// A message whose own context has already ended is not sent, nor are the later ones of its key. A message whose context ends while it is
// in flight gets that context's error, and may or may not have been sent; the others continue to wait. A later message of its key is
// acknowledged only if it was acknowledged too.
func (p *Publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	results := make([]error, len(msgs))
	if len(msgs) == 0 {
		return results
	}
	t, err := p.topic(ctx, topic, msgs)
	if err != nil {
		for i := range results {
			results[i] = fmt.Errorf("publish to %s: %w", topic, cmp.Or(msgs[i].Context().Err(), meaning(err)))
		}
		return results
	}
	defer t.running.Done()
	t.publish(ctx, msgs, results)
	if slices.ContainsFunc(results, func(err error) bool { return status.Code(err) == codes.InvalidArgument }) {
		if schema := p.resources.SchemaOf(ctx, topic); schema != "" {
			p.apart(ctx, t, schema, msgs, results)
		}
	}
	for i, err := range results {
		if err != nil {
			if status.Code(err) == codes.NotFound {
				p.resources.TopicMissing(topic)
			}
			results[i] = fmt.Errorf("publish to %s: %w", topic, meaning(err))
		}
	}
	return results
}

// Forward publishes a message from Pub/Sub unchanged, without the checks of wire.Check.
func (p *Publisher) Forward(ctx context.Context, topic string, m *pubsub.Message) error {
	t, err := p.topic(ctx, topic, nil)
	if err != nil {
		return err
	}
	defer t.running.Done()
	err = t.forward(ctx, m)
	if status.Code(err) == codes.NotFound {
		p.resources.TopicMissing(topic)
	}
	return err
}

// Close does nothing: the transport owns the publisher.
func (p *Publisher) Close() error { return nil }

// topic returns the client's publisher for the topic. It creates a missing topic at the first use. The caller must call running.Done.
func (p *Publisher) topic(ctx context.Context, topic string, msgs []*message.Message) (*topicPublisher, error) {
	if err := errors.Join(ctx.Err(), wire.CheckTopic(topic)); err != nil {
		return nil, err
	}
	if !p.resources.MayPublish(topic) {
		ctx, cancel := whileAnyone(ctx, msgs)
		defer cancel()
		if err := p.resources.EnsurePublishing(ctx, topic); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, transport.ErrClosed
	}
	t, ok := p.topics[topic]
	if !ok {
		client := p.client.Publisher(wire.Project(p.client.Project()).Topic(topic))
		client.EnableMessageOrdering = true
		client.PublishSettings.DelayThreshold = batchDelay
		t = &topicPublisher{client: client, propagator: p.propagator, keys: map[string]*keyState{}}
		p.topics[topic] = t
	}
	t.running.Add(1)
	return t, nil
}

// whileAnyone returns a context that ends with ctx, or when the context of every message has ended.
func whileAnyone(ctx context.Context, msgs []*message.Message) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	var waiting atomic.Int64
	waiting.Store(int64(len(msgs)))
	for _, msg := range msgs {
		stop := context.AfterFunc(msg.Context(), func() {
			if waiting.Add(-1) == 0 {
				cancel()
			}
		})
		context.AfterFunc(ctx, func() { stop() })
	}
	return ctx, cancel
}

// Stop sends what is in flight and stops the client's goroutines.
func (p *Publisher) Stop() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	var stopping sync.WaitGroup
	for _, t := range p.topics { // nothing is added to it any more
		stopping.Go(func() {
			t.client.Stop()
			t.running.Wait()
		})
	}
	stopping.Wait()
}
