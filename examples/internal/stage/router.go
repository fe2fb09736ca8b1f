package stage

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// Relay publishes committed events to the broker until ctx ends.
func (p *Part) Relay(ctx context.Context) error {
	publisher, err := p.Publisher()
	if err != nil {
		return err
	}
	r, err := outbox.NewRelay(p.Pool, publisher, outbox.RelayConfig{
		Schema:   p.Schema,
		LeaseTTL: time.Second, // how long a killed relay's shards wait for the next one
		Logger:   p.Log,
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// Subscriber returns a subscriber after creating its subscription, so that clients may start.
func (p *Part) Subscriber(consumer, topic string, concurrency int) (message.Subscriber, error) {
	sub, err := p.Broker.Subscriber(transport.SubscriberConfig{Consumer: p.Prefix + consumer, Concurrency: concurrency})
	if err != nil {
		return nil, err
	}
	if i, ok := sub.(message.SubscribeInitializer); ok {
		err = i.SubscribeInitialize(p.Topic(topic))
	}
	return sub, err
}

// CountDeliveries is middleware that counts each delivery.
func (p *Part) CountDeliveries(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		p.Count("deliveries")
		return h(msg)
	}
}
