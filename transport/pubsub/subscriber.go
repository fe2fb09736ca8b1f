package pubsub

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/receive"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
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

// SubscribeInitialize implements message.SubscribeInitializer: it creates topic and subscription when they are missing.
func (s *subscriber) SubscribeInitialize(topic string) error {
	return s.ensure(context.Background(), topic)
}

// Subscribe implements message.Subscriber. Ending ctx stops this subscription as Close would. The contexts of its
// messages carry ctx's values but not its cancellation, so that running handlers can finish. The channel is closed only
// on Close or when ctx ends; failures of the service are logged and retried.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := s.ensure(ctx, topic); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, transport.ErrClosed
	}
	config := s.transport.config.receiving(topic, s.config, s.transport.log)
	sub := receive.New(s.transport.shared(), config)
	if config.Push == nil {
		s.running.Go(func() { sub.Run(ctx, s.stop, sub.Watched(sub.Pull)) })
		return sub.Messages(), nil
	}
	ready := make(chan struct{})
	s.running.Go(func() {
		sub.Run(ctx, s.stop, sub.Watched(func(ctx, messages context.Context) { s.transport.pushes.Take(ctx, messages, sub, ready) }))
	})
	<-ready // from now on a request finds it
	return sub.Messages(), nil
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

// FindEventID implements transport.EventIDFinder.
func (s *subscriber) FindEventID(msg *message.Message, origin transport.Origin) (string, error) {
	return wire.FindEventID(s.transport.config.subscription(s.config.Consumer).EventID, msg, origin)
}

func (s *subscriber) ensure(ctx context.Context, topic string) error {
	err := cmp.Or(transport.RefusePattern(topic), wire.CheckTopic(topic))
	if err == nil {
		err = s.transport.resources.EnsureSubscription(ctx, s.transport.config.resource(topic, s.config))
	}
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	return nil
}
