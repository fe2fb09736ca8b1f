package main

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// relay forwards committed events to the broker.
func (s *service) relay(ctx context.Context) error {
	publisher, err := s.publisher()
	if err != nil {
		return err
	}
	r, err := outbox.NewRelay(s.pool, publisher, outbox.RelayConfig{
		Schema:   s.cfg.Schema,
		LeaseTTL: time.Second, // how long a killed relay's shards wait for the next one
		Logger:   s.log,
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// publishLatency simulates a broker over a network; the emulator answers on loopback. The articles measured 20 ms in production.
const publishLatency = 20 * time.Millisecond

// publisher returns the broker's publisher with the latency of a real one. It publishes a share of the events twice.
func (s *service) publisher() (message.Publisher, error) {
	p, err := s.broker.Publisher()
	if err != nil {
		return nil, err
	}
	return far{stage.Twice{BatchPublisher: p.(transport.BatchPublisher), Share: s.cfg.Duplicates}}, nil
}

type far struct{ transport.BatchPublisher }

func (f far) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	select { // when ctx has ended, the publisher below says so for each message
	case <-ctx.Done():
	case <-time.After(publishLatency):
	}
	return f.BatchPublisher.PublishBatch(ctx, topic, msgs)
}

func (f far) Publish(topic string, msgs ...*message.Message) error {
	return stage.OneByOne(f, topic, msgs)
}
