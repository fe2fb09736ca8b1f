// Package memory is the in-memory transport: a broker inside one process, for tests and for services without a broker.
//
// Its boundary:
//
//   - One process. Each [New] makes a broker of its own; [Transport.Connect] is a second client of the same broker.
//   - What is kept. A topic keeps messages for each consumer that has ever subscribed to it, also while that consumer has no
//     subscriber. A consumer gets none of the messages that were published before. Each message stays in memory until the consumer
//     acks or rejects it, without a limit, and is lost when the process ends. A publish returns without waiting for consumers.
//   - Order. With SubscriberConfig.Ordered the messages of a key are delivered one at a time, in the order of their publishing; other keys
//     do not wait for them. Without it, messages are delivered in that order, but several at once.
//   - Redelivery. A message that is nacked, or whose handler does not end within the drain timeout, is delivered again, and its attempts
//     are counted. A rejected message goes to the consumer's dead-letter topic, which keeps it also before anyone has subscribed.
//   - Delays. A nacked message waits as long as transport.Delivery's RetryAfter says; otherwise 10 ms, doubled by each attempt up to
//     1 s. The later messages of its key wait too.
package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/transport"
)

// Config configures the in-memory transport.
type Config struct {
	// DrainTimeout is how long a closing subscriber waits for running handlers. After that their contexts are
	// cancelled and their messages go back to the topic. Default: transport.DefaultDrainTimeout (30 s); in a service of the framework its
	// ShutdownTimeout, or the longest timeout of a handler if that is longer.
	DrainTimeout time.Duration

	// Limits is what one message may carry. Default: transport.DefaultLimits.
	Limits transport.Limits

	// TracerProvider receives a span for each delivery. Default: otel.GetTracerProvider().
	TracerProvider trace.TracerProvider

	// Propagator reads and writes the trace context in the messages' metadata. Default: otel.GetTextMapPropagator().
	Propagator propagation.TextMapPropagator
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c Config) WithDefaults() Config {
	if c.DrainTimeout == 0 {
		c.DrainTimeout = transport.DefaultDrainTimeout
	}
	if c.Limits.IsZero() {
		c.Limits = transport.DefaultLimits
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.Propagator == nil {
		c.Propagator = otel.GetTextMapPropagator() // uses the propagator that is set later
	}
	return c
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	if c.DrainTimeout < 0 {
		return fmt.Errorf("Config.DrainTimeout is %s: want more than 0, or 0 for the default of %s", c.DrainTimeout, transport.DefaultDrainTimeout)
	}
	return nil
}

// Transport is a transport inside one process. All methods may be called concurrently.
type Transport struct {
	config Config
	broker *broker

	mu          sync.Mutex
	closed      bool
	subscribers map[*subscriber]struct{}
}

// New returns a transport with a broker of its own.
func New(config Config) (*Transport, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return connect(config.WithDefaults(), &broker{topics: map[string]*topic{}}), nil
}

// Connect returns another transport on m's broker with its own lifetime. Tests use it as a second process.
func (m *Transport) Connect() *Transport { return connect(m.config, m.broker) }

func connect(config Config, broker *broker) *Transport {
	return &Transport{config: config, broker: broker, subscribers: map[*subscriber]struct{}{}}
}

// Name implements transport.Transport.
func (m *Transport) Name() string { return "memory" }

// Features implements transport.Transport.
func (m *Transport) Features() transport.Features {
	return transport.Features{Ordered: true, Attempts: true, DelayedRedelivery: true, Limits: m.config.Limits}
}

// Publisher implements transport.Transport. The publisher implements transport.BatchPublisher.
func (m *Transport) Publisher() (message.Publisher, error) {
	if m.isClosed() {
		return nil, transport.ErrClosed
	}
	return publisher{m}, nil
}

// Subscriber implements transport.Transport. The subscriber implements message.SubscribeInitializer, which registers the consumer with the
// topic. All subscribers of one consumer of a topic must agree on transport.SubscriberConfig.Ordered.
func (m *Transport) Subscriber(config transport.SubscriberConfig) (message.Subscriber, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, transport.ErrClosed
	}
	s := newSubscriber(m, config.WithDefaults())
	m.subscribers[s] = struct{}{}
	return s, nil
}

// Close implements transport.Transport.
func (m *Transport) Close() error {
	m.mu.Lock()
	m.closed = true
	subscribers := make([]*subscriber, 0, len(m.subscribers))
	for s := range m.subscribers {
		subscribers = append(subscribers, s)
	}
	m.mu.Unlock()

	// Close all subscribers at once, so that they share one drain timeout.
	var closing sync.WaitGroup
	for _, s := range subscribers {
		closing.Go(func() { _ = s.Close() })
	}
	closing.Wait()
	return nil
}

func (m *Transport) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

func (m *Transport) forget(s *subscriber) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.subscribers, s)
}

// publisher implements transport.BatchPublisher.
type publisher struct{ transport *Transport }

func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	return errors.Join(p.PublishBatch(context.Background(), topic, msgs)...)
}

func (p publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	results := make([]error, len(msgs))
	var refused error
	if p.transport.isClosed() {
		refused = transport.ErrClosed
	} else {
		refused = ctx.Err()
	}
	if refused != nil {
		for i := range results {
			results[i] = refused
		}
		return results
	}
	accepted := make([]*message.Message, 0, len(msgs))
	failed := map[string]bool{}
	for i, msg := range msgs {
		key := transport.Key(msg)
		if key != "" && failed[key] {
			results[i] = transport.ErrNotSent
			continue
		}
		if err := errors.Join(p.transport.config.Limits.Check(topic, msg), transport.CheckText(msg)); err != nil {
			results[i] = fmt.Errorf("publish to %s: %w", topic, err)
			failed[key] = true
			continue
		}
		accepted = append(accepted, msg)
	}
	p.transport.broker.topic(topic).publish(ctx, accepted, p.transport.config.Propagator)
	return results
}

// Close does nothing: the transport owns the publisher.
func (p publisher) Close() error { return nil }

// Ping implements transport.Pinger.
func (m *Transport) Ping(context.Context) error {
	if m.isClosed() {
		return transport.ErrClosed
	}
	return nil
}
