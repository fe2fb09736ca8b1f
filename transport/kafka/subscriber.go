package kafka

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/group"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// subscriber implements message.Subscriber and message.SubscribeInitializer.
type subscriber struct {
	transport *Transport
	config    transport.SubscriberConfig

	mu      sync.Mutex
	closed  bool
	closing context.Context // ended by Close: no more messages are taken
	close   context.CancelFunc
	running sync.WaitGroup // one per call of Subscribe and per subscription; the former is added only under mu while not closed
}

func newSubscriber(t *Transport, config transport.SubscriberConfig) *subscriber {
	s := &subscriber{transport: t, config: config}
	s.closing, s.close = context.WithCancel(context.Background())
	return s
}

// SubscribeInitialize implements message.SubscribeInitializer: it creates the topic when it is missing.
func (s *subscriber) SubscribeInitialize(topic string) error {
	if err := s.ensure(context.Background(), topic); err != nil {
		return fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	return nil
}

// Subscribe implements message.Subscriber. Ending ctx stops this subscription as Close would. The contexts of its
// messages carry ctx's values but not its cancellation, so that running handlers can finish. The channel is closed only
// on Close or when ctx ends; failures of the brokers are logged and retried.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	connecting, done, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	sub, err := s.subscribe(ctx, connecting, topic)
	if err != nil && ctx.Err() == nil && connecting.Err() != nil {
		err = transport.ErrClosed
	}
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, conn.WithRemedy(err, s.config.Consumer, topic))
	}
	return sub.Messages(), nil
}

// begin returns the context of a new subscription's connecting, which Close ends, too, and waits for.
func (s *subscriber) begin(ctx context.Context) (connecting context.Context, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, transport.ErrClosed
	}
	s.running.Add(1)
	connecting, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.closing, cancel)
	return connecting, func() {
		stop()
		cancel()
		s.running.Done()
	}, nil
}

func (s *subscriber) subscribe(ctx, connecting context.Context, topic string) (*group.Subscription, error) {
	if err := s.ensure(connecting, topic); err != nil {
		return nil, err
	}
	shared, config := s.transport.shared(), s.transport.config.consuming(s.config, topic, s.transport.log)
	if transport.IsPattern(topic) {
		pattern, err := s.transport.config.pattern(topic)
		if err != nil {
			return nil, err
		}
		config.Pattern = pattern
	}
	if s.transport.config.consumer(s.config.Consumer).StartAt == Newest {
		topics := []string{topic}
		if config.Pattern != nil {
			var err error
			if topics, err = s.transport.matching(connecting, config.Pattern); err != nil {
				return nil, err
			}
		}
		err := group.StartAtNewest(connecting, shared, s.config.Consumer, topics)
		if errors.Is(err, conn.ErrActive) {
			config.Newest = topics
		} else if err != nil {
			return nil, err
		}
	}
	var free func()
	config.Instance, free = s.transport.instance(s.config.Consumer, topic)
	sub, err := group.New(connecting, shared, config)
	if err != nil {
		free()
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	s.running.Go(func() {
		defer free()
		defer stop()
		sub.Run(running, s.closing.Done())
	})
	if err := sub.AwaitNewest(connecting); err != nil {
		stop()
		return nil, err
	}
	return sub, nil
}

// Close implements message.Subscriber; transport.Transport.Subscriber tells what it waits for.
func (s *subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.close()
	s.running.Wait()
	s.transport.forget(s)
	return nil
}

// FindEventID implements transport.EventIDFinder.
func (s *subscriber) FindEventID(msg *message.Message, origin transport.Origin) (string, error) {
	return wire.FindEventID(s.transport.config.consumer(s.config.Consumer).EventID, msg, origin)
}

// ensure sees to the topic, if it is no pattern, and to that of the dead letters: to learn only from the first of these that
// there is none would be late.
func (s *subscriber) ensure(ctx context.Context, topic string) error {
	if transport.IsPattern(topic) {
		if _, err := s.transport.config.pattern(topic); err != nil {
			return err
		}
	} else if err := s.transport.topics.Ensure(ctx, topic); err != nil {
		return err
	}
	dead := s.transport.config.consumer(s.config.Consumer).DeadLetter.Topic
	switch dead {
	case "":
	case topic:
		return fmt.Errorf("DeadLetter.Topic of consumer %q is the same: what fails would come again for ever; want another topic, or an entry in Config.Consumers without one", s.config.Consumer)
	default:
		if err := s.transport.topics.Ensure(ctx, dead); err != nil {
			return fmt.Errorf("DeadLetter.Topic of consumer %q: %w", s.config.Consumer, err)
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
