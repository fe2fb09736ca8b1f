// Package resource creates and checks topics and subscriptions, and notices deleted topics. Publishers and subscriptions share its state.
package resource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// createTimeout bounds the calls that look up, create or change one topic or subscription.
const createTimeout = 30 * time.Second

// Config says what to do with topics and subscriptions, as pubsub.Config describes it.
type Config struct {
	Project       wire.Project
	Topic         setting.Topic
	Schemas       map[string]setting.Schema // by topic
	Create        bool                      // create what is missing
	Update        bool                      // change what differs
	Recheck       time.Duration
	MeterProvider metric.MeterProvider
	Log           *slog.Logger
}

// Subscription is a consumer's subscription to a topic.
type Subscription struct {
	Topic, Consumer string
	setting.Subscription
}

// Registry creates or checks topics and subscriptions, as its configuration says, and remembers those that are well. It does not remember
// failures.
//
// An account that may not look up topics and subscriptions, or may not create a topic, can still publish and receive. Then they are
// assumed to exist, and publishing or receiving shows if they do not.
type Registry struct {
	client *conn.Client
	config Config
	log    *slog.Logger
	known  sync.Map // full name, with a memo suffix for some checks → struct{}

	deletedTopics metric.Int64UpDownCounter
	published     sync.Map // topic → *publishedTopic
	stopWatching  context.CancelFunc

	flights singleflight.Group
	mu      sync.Mutex // guards running.Add against Wait
	closed  bool
	running sync.WaitGroup
	late    chan struct{} // closed when running work must end
}

// New returns a registry that checks the published topics from time to time, until Wait.
func New(client *conn.Client, config Config) (*Registry, error) {
	deleted, err := config.MeterProvider.Meter(conn.Scope).Int64UpDownCounter("millrace.pubsub.deleted_topics", metric.WithUnit("{topic}"),
		metric.WithDescription("Topics that this process uses and that were deleted: with millrace.consumer, nothing published reaches the consumer; without it, nothing is published."))
	if err != nil {
		return nil, err
	}
	r := &Registry{client: client, config: config, log: config.Log, deletedTopics: deleted, late: make(chan struct{})}
	var watching context.Context
	watching, r.stopWatching = context.WithCancel(context.Background())
	r.running.Go(func() { r.watch(watching) })
	return r, nil
}

// What is remembered of a name, besides that it exists.
const (
	memoOrdered = " ordered" // so that each setting is compared with what exists
	memoRead    = " read"    // a dead-letter topic that has a subscription
	memoPublish = " publish" // a topic that still feeds its known subscriptions
)

func (r *Registry) topicName(topic string) string { return r.config.Project.Topic(topic) }

// CountDeleted counts a deleted topic, or with n = -1 one that exists again. For a publisher, consumer is "".
func (r *Registry) CountDeleted(topic, consumer string, n int64) {
	attributes := []attribute.KeyValue{attribute.String("messaging.destination.name", topic)}
	if consumer != "" {
		attributes = append(attributes, attribute.String("millrace.consumer", consumer))
	}
	r.deletedTopics.Add(context.Background(), n, metric.WithAttributes(attributes...))
}

// ensureTopic makes sure that the topic exists.
func (r *Registry) ensureTopic(ctx context.Context, topic string) error {
	name := r.topicName(topic)
	return r.once(ctx, name, func(ctx context.Context) error { return r.createTopic(ctx, name) })
}

// EnsureDeadLetterTopic makes sure that the topic exists and has a subscription that keeps its messages.
func (r *Registry) EnsureDeadLetterTopic(ctx context.Context, topic string) error {
	if err := r.ensureTopic(ctx, topic); err != nil {
		return err
	}
	return r.once(ctx, r.topicName(topic)+memoRead, func(ctx context.Context) error { return r.keepDeadLetters(ctx, topic) })
}

// KeepsDeadLetters reports whether EnsureDeadLetterTopic has nothing to do.
func (r *Registry) KeepsDeadLetters(topic string) bool {
	_, ok := r.known.Load(r.topicName(topic) + memoRead)
	return ok
}

// EnsureSubscription makes sure that topic and subscription exist, and that the subscription is as configured.
func (r *Registry) EnsureSubscription(ctx context.Context, s Subscription) error {
	name := r.config.Project.Subscription(s.Topic, s.Consumer)
	if id := path.Base(name); len(id) > 255 {
		return fmt.Errorf("%w: subscription %q has %d bytes, the limit is 255: shorten the topic or the consumer", transport.ErrLimit, id, len(id))
	}
	if s.DeadLetters == s.Topic {
		return fmt.Errorf("the dead-letter topic of consumer %s is the topic %s itself, so that what fails would go round for ever: give the consumer an entry in Config.Consumers without it", s.Consumer, s.Topic)
	}
	if err := r.ensureTopic(ctx, s.Topic); err != nil {
		return err
	}
	if s.DeadLetters != "" {
		if err := r.EnsureDeadLetterTopic(ctx, s.DeadLetters); err != nil {
			return fmt.Errorf("dead-letter topic: %w", err)
		}
	}
	memo := name
	if s.Ordered {
		memo += memoOrdered
	}
	return r.once(ctx, memo, func(ctx context.Context) error { return r.settle(ctx, s.Wanted(r.config.Project, s.Topic, s.Consumer)) })
}

// forgetTopic makes the next use check the topic again, after the service has reported "not found".
func (r *Registry) forgetTopic(topic string) {
	name := r.topicName(topic)
	r.known.Delete(name)
	r.known.Delete(name + memoRead)
}

// ForgetSubscription does the same for a subscription and its topic.
func (r *Registry) ForgetSubscription(s Subscription) {
	name := r.config.Project.Subscription(s.Topic, s.Consumer)
	r.known.Delete(name)
	r.known.Delete(name + memoOrdered)
	r.forgetTopic(s.Topic)
}

// once runs settle, shared like in share, unless it has succeeded for memo before.
func (r *Registry) once(ctx context.Context, memo string, settle func(context.Context) error) error {
	if _, ok := r.known.Load(memo); ok {
		return nil
	}
	return r.share(ctx, memo, func(ctx context.Context) error {
		if _, ok := r.known.Load(memo); ok {
			return nil // by a flight that has ended since
		}
		err := settle(ctx)
		if err == nil {
			r.known.Store(memo, struct{}{})
		}
		return err
	})
}

// share runs settle once for concurrent callers with the same key. The run continues if a caller's ctx ends.
func (r *Registry) share(ctx context.Context, key string, settle func(context.Context) error) error {
	result := make(chan error, 1)
	flight := func() {
		_, err, _ := r.flights.Do(key, func() (any, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
			defer cancel()
			r.running.Go(func() {
				select {
				case <-r.late:
					cancel()
				case <-ctx.Done():
				}
			})
			err := settle(ctx)
			if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				err = fmt.Errorf("%w: no result in %s: %w", transport.ErrUnavailable, createTimeout, err)
			}
			return nil, err
		})
		result <- err
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return transport.ErrClosed
	}
	r.running.Go(flight)
	r.mu.Unlock()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wait refuses new work and returns after the last goroutine. At the deadline it cancels running work. It must be called once.
func (r *Registry) Wait(deadline time.Time) {
	r.stopWatching()
	timer := time.AfterFunc(time.Until(deadline), func() { close(r.late) })
	defer timer.Stop()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.running.Wait()
}

// exists reports whether to assume after this error that the thing exists: it does, or this account may not find out.
func exists(err error) bool {
	code := status.Code(err)
	return code == codes.AlreadyExists || code == codes.PermissionDenied
}
