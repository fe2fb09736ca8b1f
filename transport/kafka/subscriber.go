package kafka

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// subscriber implements message.Subscriber and message.SubscribeInitializer.
type subscriber struct {
	transport *Transport
	config    transport.SubscriberConfig
}

func newSubscriber(t *Transport, config transport.SubscriberConfig) *subscriber {
	return &subscriber{transport: t, config: config}
}

// SubscribeInitialize implements message.SubscribeInitializer: it creates the topic when it is missing.
func (s *subscriber) SubscribeInitialize(topic string) error {
	return s.transport.topics.ensure(context.Background(), topic)
}

// Subscribe implements message.Subscriber.
func (s *subscriber) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return nil, transport.ErrUnavailable
}

// Close implements message.Subscriber.
func (s *subscriber) Close() error {
	s.transport.forget(s)
	return nil
}
