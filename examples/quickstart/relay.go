package main

import (
	"context"
	"hash/fnv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// relay forwards what was committed to the broker.
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

// publishLatency is what a publish to a broker over a network takes, where the emulator answers on loopback. The articles
// measured 20 ms in production.
const publishLatency = 20 * time.Millisecond

// publisher is the broker's, as far away as a real one, and it publishes a share of the events twice.
func (s *service) publisher() (message.Publisher, error) {
	p, err := s.broker.Publisher()
	if err != nil {
		return nil, err
	}
	return &duplicator{BatchPublisher: p.(transport.BatchPublisher), share: s.cfg.Duplicates}, nil
}

type duplicator struct {
	transport.BatchPublisher
	share float64
}

func (d *duplicator) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	select { // when ctx has ended, the publisher below says so for each message
	case <-ctx.Done():
	case <-time.After(publishLatency):
	}
	results := d.BatchPublisher.PublishBatch(ctx, topic, msgs)
	var again []*message.Message
	for i, m := range msgs {
		if results[i] == nil && d.twice(m.UUID) {
			again = append(again, m)
		}
	}
	if len(again) > 0 {
		d.BatchPublisher.PublishBatch(ctx, topic, again)
	}
	return results
}

func (d *duplicator) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		if err := d.PublishBatch(m.Context(), topic, []*message.Message{m})[0]; err != nil {
			return err
		}
	}
	return nil
}

func (d *duplicator) twice(eventID string) bool {
	h := fnv.New64a()
	h.Write([]byte(eventID))
	return float64(h.Sum64()>>11)/(1<<53) < d.share
}
