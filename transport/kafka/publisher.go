package kafka

import (
	"context"
	"errors"
	"log/slog"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// publisher implements transport.BatchPublisher. It is safe for concurrent use.
type publisher struct {
	topics *topics
}

func newPublisher(client sarama.Client, topics *topics, config Config, log *slog.Logger) *publisher {
	return &publisher{topics: topics}
}

// Publish implements message.Publisher: it publishes all messages at once and joins their errors.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	return errors.Join(p.PublishBatch(context.Background(), topic, msgs)...)
}

// PublishBatch implements transport.BatchPublisher.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	results := make([]error, len(msgs))
	for i := range results {
		results[i] = transport.ErrUnavailable
	}
	return results
}

// Close does nothing: the transport owns the publisher.
func (p *publisher) Close() error { return nil }

func (p *publisher) stop() {}
