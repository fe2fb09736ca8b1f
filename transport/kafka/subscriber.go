package kafka

import (
	"context"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// subscriber implements message.Subscriber and message.SubscribeInitializer.
type subscriber struct {
	transport *Transport
	config    transport.SubscriberConfig

	mu      sync.Mutex
	closed  bool
	stop    chan struct{}  // closed by Close: intake ends
	running sync.WaitGroup // one per Subscribe; Add only under mu while not closed
}

func newSubscriber(t *Transport, config transport.SubscriberConfig) *subscriber {
	return &subscriber{transport: t, config: config, stop: make(chan struct{})}
}

// SubscribeInitialize implements message.SubscribeInitializer: it creates the topic when it is missing.
func (s *subscriber) SubscribeInitialize(topic string) error {
	return s.ensure(context.Background(), topic)
}

// Subscribe implements message.Subscriber. Ending ctx stops this subscription as Close would. The contexts of its
// messages carry ctx's values but not its cancellation, so that running handlers can finish. The channel is closed only
// on Close or when ctx ends; failures of the brokers are logged and retried.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := s.ensure(ctx, topic); err != nil {
		return nil, err
	}
	if s.transport.config.consumer(s.config.Consumer).StartAt == Newest {
		if err := s.transport.startAtNewest(ctx, s.config.Consumer, topic); err != nil {
			return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, transport.ErrClosed
	}
	instance, free := s.transport.instance(s.config.Consumer, topic)
	sub, err := newSubscription(ctx, s.transport, s.config, topic, instance)
	if err != nil {
		free()
		return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	s.running.Go(func() {
		defer free()
		sub.run(ctx, s.stop)
	})
	return sub.out, nil
}

// Close implements message.Subscriber; transport.Transport.Subscriber tells what it waits for.
func (s *subscriber) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.stop)
	}
	s.mu.Unlock()
	s.running.Wait()
	s.transport.forget(s)
	return nil
}

// ensure sees to the topic, and to that of the dead letters: to learn only from the first of these that there is none would
// be late.
func (s *subscriber) ensure(ctx context.Context, topic string) error {
	if err := s.transport.topics.ensure(ctx, topic); err != nil {
		return fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	dead := s.transport.config.consumer(s.config.Consumer).DeadLetter.Topic
	switch dead {
	case "":
	case topic:
		return fmt.Errorf("subscribe to %s: DeadLetter.Topic of consumer %q is the same: what fails would come again for ever; want another topic, or an entry in Config.Consumers without one", topic, s.config.Consumer)
	default:
		if err := s.transport.topics.ensure(ctx, dead); err != nil {
			return fmt.Errorf("subscribe to %s: DeadLetter.Topic of consumer %q: %w", topic, s.config.Consumer, err)
		}
	}
	return nil
}

// instance returns the name of a static member, or "" when members are dynamic; the caller calls free at its end. Each
// subscription is a member of its own, and so needs a name that no other of this process has, and that it has again when
// the process was restarted.
func (t *Transport) instance(consumer, topic string) (name string, free func()) {
	id := t.config.consumer(consumer).InstanceID
	if id == "" {
		return "", func() {}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for n := 0; ; n++ {
		name = fmt.Sprintf("%s.%08x.%d", id, crc32.ChecksumIEEE([]byte(topic)), n)
		if member := consumer + "/" + name; !t.instances[member] {
			t.instances[member] = true
			return name, func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				delete(t.instances, member)
			}
		}
	}
}
