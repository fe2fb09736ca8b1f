// Package pubsub is the transport for Google Cloud Pub/Sub.
//
// An event travels so that watermill-googlecloud reads it and the other way round: its ID is the attribute
// "_watermill_message_uuid", its metadata are attributes, and its key is the message's ordering key. Topics and
// subscriptions are created when they are first used, or checked, as Config.Resources says; the subscription of a
// consumer is named "<topic>.<consumer>".
//
// Credentials, endpoint and emulator (PUBSUB_EMULATOR_HOST) follow the conventions of Google's client.
package pubsub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
	"github.com/millrace-go/millrace/transport/pubsub/internal/publish"
	"github.com/millrace-go/millrace/transport/pubsub/internal/push"
	"github.com/millrace-go/millrace/transport/pubsub/internal/receive"
	"github.com/millrace-go/millrace/transport/pubsub/internal/resource"
)

// Transport is a connection to Pub/Sub. All methods may be called concurrently.
type Transport struct {
	config    Config
	log       *slog.Logger
	client    *conn.Client
	resources *resource.Registry
	publisher *publish.Publisher
	observer  *receive.Observer
	pushes    *push.Server

	ackFailures atomic.Int64

	mu          sync.Mutex
	closed      bool
	subscribers map[*subscriber]struct{}

	closeOnce sync.Once
	closeErr  error
}

var _ interface {
	transport.Transport
	transport.PushServer
} = (*Transport)(nil)

// New connects to Pub/Sub. ctx bounds the connecting only; the transport lives until Close.
func New(ctx context.Context, config Config) (*Transport, error) {
	config = config.WithDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	observer, err := receive.NewObserver(config.MeterProvider)
	if err != nil {
		return nil, fmt.Errorf("make the instruments of millrace.pubsub: %w", err)
	}
	log := config.Logger.With(slog.String("transport", "pubsub"), slog.String("project", config.ProjectID))
	pushes, err := push.New(ctx, config.pushed(log))
	if err != nil {
		return nil, err
	}
	t := &Transport{
		config:      config,
		log:         log,
		observer:    observer,
		pushes:      pushes,
		subscribers: map[*subscriber]struct{}{},
	}
	t.client, err = conn.New(ctx, config.connection())
	if err != nil {
		return nil, err
	}
	t.resources, err = resource.New(t.client, config.resources(log))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the instruments of millrace.pubsub: %w", err), t.client.Close())
	}
	t.publisher = publish.New(t.client, t.resources, config.Propagator)
	return t, nil
}

// Name implements transport.Transport.
func (t *Transport) Name() string { return "pubsub" }

// Features implements transport.Transport. Pub/Sub counts attempts only for subscriptions with a dead-letter policy, so
// Attempts is true when the configuration has one for every consumer. Its count is what Pub/Sub makes of it: a message
// that went back because a process ended has one more, though no handler may have seen it.
func (t *Transport) Features() transport.Features {
	attempts := t.config.Subscription.DeadLetter.Topic != ""
	for _, s := range t.config.Consumers {
		attempts = attempts && s.DeadLetter.Topic != ""
	}
	return transport.Features{Ordered: true, Attempts: attempts, DelayedRedelivery: true, Persistent: true, Limits: Limits}
}

// Publisher implements transport.Transport. The publisher implements transport.BatchPublisher.
func (t *Transport) Publisher() (message.Publisher, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	return t.publisher, nil
}

// Subscriber implements transport.Transport. The subscriber implements message.SubscribeInitializer, which creates
// topic and subscription. Several calls of Subscribe for one topic share its messages.
func (t *Transport) Subscriber(config transport.SubscriberConfig) (message.Subscriber, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	s := newSubscriber(t, config.WithDefaults())
	t.subscribers[s] = struct{}{}
	return s, nil
}

// AckFailures is how many acks the service has refused since the transport was made. It tells only of subscriptions
// with exactly-once delivery: without it Pub/Sub does not say whether an ack was too late. Each of them is also logged;
// the message is delivered again.
func (t *Transport) AckFailures() int64 { return t.ackFailures.Load() }

// Close implements transport.Transport. It takes no longer than the drain timeout and a few seconds: what cannot be
// flushed by then fails.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	subscribers := make([]*subscriber, 0, len(t.subscribers))
	for s := range t.subscribers {
		subscribers = append(subscribers, s)
	}
	t.mu.Unlock()

	t.closeOnce.Do(func() {
		deadline := time.Now().Add(t.config.DrainTimeout)
		// All at once: one drain timeout for all of them, not one for each. The publisher goes last, because running
		// handlers may publish.
		var closing sync.WaitGroup
		for _, s := range subscribers {
			closing.Go(func() { _ = s.Close() })
		}
		closing.Wait()
		if soonest := time.Now().Add(conn.FlushTimeout); deadline.Before(soonest) {
			deadline = soonest
		}
		closeClient := sync.OnceValue(t.client.Close)
		// In an outage the client would try for a minute. Without it the callers get their errors.
		late := time.AfterFunc(time.Until(deadline), func() { _ = closeClient() })
		defer late.Stop()
		t.publisher.Stop()
		t.resources.Wait(deadline)
		if err := closeClient(); err != nil {
			t.closeErr = fmt.Errorf("close the Pub/Sub client: %w", err)
		}
	})
	return t.closeErr
}

// shared is what subscriptions share.
func (t *Transport) shared() receive.Shared {
	return receive.Shared{Client: t.client, Resources: t.resources, Publisher: t.publisher, Observer: t.observer, AckFailures: &t.ackFailures}
}

func (t *Transport) forget(s *subscriber) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.subscribers, s)
}
