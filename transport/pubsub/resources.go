package pubsub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// createTimeout bounds the calls that look up, create or change one topic or subscription.
const createTimeout = 30 * time.Second

// resources creates or checks topics and subscriptions, as Config.Resources says, and remembers those that are well.
// Failures are not remembered.
//
// An account that may not look them up, or may not create a topic, can still publish and receive: then they are taken to
// exist, and publishing or receiving tells when they do not.
type resources struct {
	client *conn.Client
	config Config
	log    *slog.Logger
	known  sync.Map // full name, perhaps with what was looked at → struct{}

	observer     *observer
	published    sync.Map // topic → *publishedTopic
	stopWatching context.CancelFunc

	flights singleflight.Group
	mu      sync.Mutex // guards running.Add against wait
	closed  bool
	running sync.WaitGroup
	late    chan struct{} // closed when what runs is to end
}

func newResources(client *conn.Client, config Config, observer *observer, log *slog.Logger) *resources {
	r := &resources{client: client, config: config, observer: observer, log: log, late: make(chan struct{})}
	var watching context.Context
	watching, r.stopWatching = context.WithCancel(context.Background())
	r.running.Go(func() { r.watch(watching) })
	return r
}

// What is remembered of a name besides that it exists.
const (
	memoOrdered = " ordered" // so that each setting is compared with what exists
	memoRead    = " read"    // a dead-letter topic that has a subscription
	memoPublish = " publish" // a topic that feeds the subscriptions that it is known to feed
)

func (r *resources) topicName(topic string) string {
	return wire.Project(r.config.ProjectID).Topic(topic)
}

func (r *resources) subscriptionName(topic, consumer string) string {
	return wire.Project(r.config.ProjectID).Subscription(topic, consumer)
}

// ensureTopic sees to it that the topic exists.
func (r *resources) ensureTopic(ctx context.Context, topic string) error {
	name := r.topicName(topic)
	return r.once(ctx, name, func(ctx context.Context) error { return r.createTopic(ctx, name) })
}

// ensureDeadLetterTopic sees to it that the topic exists and that what arrives there is kept.
func (r *resources) ensureDeadLetterTopic(ctx context.Context, topic string) error {
	if err := r.ensureTopic(ctx, topic); err != nil {
		return err
	}
	return r.once(ctx, r.topicName(topic)+memoRead, func(ctx context.Context) error { return r.keepDeadLetters(ctx, topic) })
}

// keepsDeadLetters tells whether ensureDeadLetterTopic has nothing to do.
func (r *resources) keepsDeadLetters(topic string) bool {
	_, ok := r.known.Load(r.topicName(topic) + memoRead)
	return ok
}

// ensureSubscription sees to it that topic and subscription exist, and that the subscription is as configured. It
// returns the subscription's full name.
func (r *resources) ensureSubscription(ctx context.Context, topic string, config transport.SubscriberConfig) (string, error) {
	name := r.subscriptionName(topic, config.Consumer)
	if id := path.Base(name); len(id) > 255 {
		return "", fmt.Errorf("%w: subscription %q has %d bytes, the limit is 255: shorten the topic or the consumer", transport.ErrLimit, id, len(id))
	}
	dead := r.config.subscription(config.Consumer).DeadLetter.Topic
	if dead == topic {
		return "", fmt.Errorf("the dead-letter topic of consumer %s is the topic %s itself, so that what fails would go round for ever: give the consumer an entry in Config.Consumers without it", config.Consumer, topic)
	}
	if err := r.ensureTopic(ctx, topic); err != nil {
		return "", err
	}
	if dead != "" {
		if err := r.ensureDeadLetterTopic(ctx, dead); err != nil {
			return "", fmt.Errorf("dead-letter topic: %w", err)
		}
	}
	memo := name
	if config.Ordered {
		memo += memoOrdered
	}
	return name, r.once(ctx, memo, func(ctx context.Context) error { return r.settle(ctx, r.wanted(topic, config)) })
}

// forgetTopic and forgetSubscription make the next use look again, after the service has said "not found".
func (r *resources) forgetTopic(topic string) {
	name := r.topicName(topic)
	r.known.Delete(name)
	r.known.Delete(name + memoRead)
}

func (r *resources) forgetSubscription(topic string, config transport.SubscriberConfig) {
	name := r.subscriptionName(topic, config.Consumer)
	r.known.Delete(name)
	r.known.Delete(name + memoOrdered)
	r.forgetTopic(topic)
}

// once runs settle for memo, as share does, unless it has succeeded before.
func (r *resources) once(ctx context.Context, memo string, settle func(context.Context) error) error {
	if _, ok := r.known.Load(memo); ok {
		return nil
	}
	return r.share(ctx, memo, func(ctx context.Context) error {
		if _, ok := r.known.Load(memo); ok {
			return nil // by a flight that ended since
		}
		err := settle(ctx)
		if err == nil {
			r.known.Store(memo, struct{}{})
		}
		return err
	})
}

// share runs settle once for concurrent callers with one key. The run outlives a caller whose ctx ends.
func (r *resources) share(ctx context.Context, key string, settle func(context.Context) error) error {
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

// wait refuses new work and returns after the last goroutine. After the deadline it ends what runs. It is called once.
func (r *resources) wait(deadline time.Time) {
	r.stopWatching()
	timer := time.AfterFunc(time.Until(deadline), func() { close(r.late) })
	defer timer.Stop()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.running.Wait()
}

// exists tells errors after which the thing is taken to exist: it does, or this account may not find out.
func exists(err error) bool {
	code := status.Code(err)
	return code == codes.AlreadyExists || code == codes.PermissionDenied
}
