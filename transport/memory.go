package transport

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
)

// DefaultDrainTimeout is how long a closing subscriber waits for running handlers if the configuration sets no other time.
const DefaultDrainTimeout = 30 * time.Second

// MemoryConfig configures the in-memory transport.
type MemoryConfig struct {
	// DrainTimeout is how long a closing subscriber waits for running handlers. After that their contexts are
	// cancelled and their messages go back to the topic. Default: DefaultDrainTimeout (30 s); in a service of the framework its
	// ShutdownTimeout, or the longest timeout of a handler if that is longer.
	DrainTimeout time.Duration

	// Limits is what one message may carry. Default: DefaultLimits.
	Limits Limits

	// TracerProvider receives a span for each delivery. Default: otel.GetTracerProvider().
	TracerProvider trace.TracerProvider

	// Propagator reads and writes the trace context in the messages' metadata. Default: otel.GetTextMapPropagator().
	Propagator propagation.TextMapPropagator
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c MemoryConfig) WithDefaults() MemoryConfig {
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if c.Limits.IsZero() {
		c.Limits = DefaultLimits
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
func (c MemoryConfig) Validate() error {
	if c.DrainTimeout < 0 {
		return fmt.Errorf("MemoryConfig.DrainTimeout is %s: want more than 0, or 0 for the default of %s", c.DrainTimeout, DefaultDrainTimeout)
	}
	return nil
}

// Memory is a transport inside one process, for tests and for services without a broker. A published message reaches every
// consumer that has ever subscribed, even if it has no subscriber at the moment. Messages are lost when the process ends, and
// stay in memory until they are consumed.
//
// All methods may be called concurrently.
type Memory struct {
	config MemoryConfig
	broker *memoryBroker

	mu          sync.Mutex
	closed      bool
	subscribers map[*memorySubscriber]struct{}
}

// NewMemory returns a transport with a broker of its own.
func NewMemory(config MemoryConfig) (*Memory, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return connectMemory(config.WithDefaults(), &memoryBroker{topics: map[string]*memoryTopic{}}), nil
}

// Connect returns another transport on m's broker with its own lifetime. Tests use it as a second process.
func (m *Memory) Connect() *Memory { return connectMemory(m.config, m.broker) }

func connectMemory(config MemoryConfig, broker *memoryBroker) *Memory {
	return &Memory{config: config, broker: broker, subscribers: map[*memorySubscriber]struct{}{}}
}

// Name implements Transport.
func (m *Memory) Name() string { return "memory" }

// Features implements Transport.
func (m *Memory) Features() Features {
	return Features{Ordered: true, Attempts: true, DelayedRedelivery: true, Limits: m.config.Limits}
}

// Publisher implements Transport. The publisher implements BatchPublisher.
func (m *Memory) Publisher() (message.Publisher, error) {
	if m.isClosed() {
		return nil, ErrClosed
	}
	return memoryPublisher{m}, nil
}

// Subscriber implements Transport. The subscriber implements message.SubscribeInitializer, which registers the consumer with the
// topic. All subscribers of one consumer of a topic must agree on SubscriberConfig.Ordered.
func (m *Memory) Subscriber(config SubscriberConfig) (message.Subscriber, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	s := newMemorySubscriber(m, config.WithDefaults())
	m.subscribers[s] = struct{}{}
	return s, nil
}

// Close implements Transport.
func (m *Memory) Close() error {
	m.mu.Lock()
	m.closed = true
	subscribers := make([]*memorySubscriber, 0, len(m.subscribers))
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

func (m *Memory) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

func (m *Memory) forget(s *memorySubscriber) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.subscribers, s)
}

// memoryPublisher implements BatchPublisher.
type memoryPublisher struct{ transport *Memory }

func (p memoryPublisher) Publish(topic string, msgs ...*message.Message) error {
	return errors.Join(p.PublishBatch(context.Background(), topic, msgs)...)
}

func (p memoryPublisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	results := make([]error, len(msgs))
	var refused error
	if p.transport.isClosed() {
		refused = ErrClosed
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
		key := Key(msg)
		if key != "" && failed[key] {
			results[i] = ErrNotSent
			continue
		}
		if err := errors.Join(p.transport.config.Limits.Check(topic, msg), CheckText(msg)); err != nil {
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
func (p memoryPublisher) Close() error { return nil }

// Ping implements Pinger.
func (m *Memory) Ping(context.Context) error {
	if m.isClosed() {
		return ErrClosed
	}
	return nil
}
