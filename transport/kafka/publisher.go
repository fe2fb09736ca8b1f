package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/propagation"

	"github.com/millrace-go/millrace/transport"
)

// publisher implements transport.BatchPublisher. It is safe for concurrent use.
type publisher struct {
	client      sarama.Client
	topics      *topics
	producer    *producer
	partitioner Partitioner
	spread      spread
	limits      transport.Limits
	propagator  propagation.TextMapPropagator
	timeout     time.Duration
}

func newPublisher(life context.Context, client sarama.Client, topics *topics, config Config, log *slog.Logger) (*publisher, error) {
	producer, err := newProducer(life, client, topics, config, log)
	if err != nil {
		return nil, err
	}
	return &publisher{
		client:      client,
		topics:      topics,
		producer:    producer,
		partitioner: config.Producer.Partitioner,
		limits:      config.limits(),
		propagator:  config.Propagator,
		timeout:     config.Producer.Timeout,
	}, nil
}

// Publish implements message.Publisher: it publishes all messages at once and joins their errors. It waits for as long as
// ProducerConfig.Timeout says, or until the messages' own contexts end.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	return errors.Join(p.PublishBatch(context.Background(), topic, msgs)...)
}

// PublishBatch implements transport.BatchPublisher. A failed message holds back those of its key that other calls have
// queued behind it, too: they get transport.ErrNotSent.
//
// A message whose own context has ended before is not sent, nor are the later ones of its key. One whose context ends
// while it is under way gets that context's error, and may or may not have been sent; the others go on waiting.
//
// A result that is unavailable, or a context's error, is of a message that may have been sent. Whoever sends it again
// makes a duplicate with the same ID then, and no other disorder: an attempt of the first that is still on its way is
// refused once a later message of the partition has arrived.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	return p.batch(ctx, topic, msgs, true)
}

// forward publishes what came from Kafka, and may be what no message of ours may be: with a binary key, say.
func (p *publisher) forward(ctx context.Context, topic string, msg *message.Message) error {
	return p.batch(ctx, topic, []*message.Message{msg}, false)[0]
}

// batch is PublishBatch, which checks the messages, or not.
func (p *publisher) batch(ctx context.Context, topic string, msgs []*message.Message, checked bool) []error {
	results := make([]error, len(msgs))
	if len(msgs) == 0 {
		return results
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("%w: no acknowledgement within %s", transport.ErrUnavailable, p.timeout))
	defer cancel()
	if err := p.publish(ctx, topic, msgs, results, checked); err != nil {
		for i := range results {
			results[i] = err
		}
	}
	for i, err := range results {
		if err != nil {
			results[i] = fmt.Errorf("publish to %s: %w", topic, err)
		}
	}
	return results
}

// publish stores the messages' results, or returns what is wrong with all of them.
func (p *publisher) publish(ctx context.Context, topic string, msgs []*message.Message, results []error, checked bool) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	partitions, err := p.partitions(ctx, topic)
	if err != nil {
		return p.unavailable(ctx, err)
	}
	writable, err := p.client.WritablePartitions(topic)
	if err != nil || len(writable) == 0 {
		writable = partitions
	}
	limit := p.topics.limit(topic)
	c := &call{results: results, done: make(chan struct{})}
	items := make([]*item, 0, len(msgs))
	failed := map[string]bool{}
	for i, msg := range msgs {
		key := transport.Key(msg)
		if failed[key] {
			results[i] = transport.ErrNotSent
			continue
		}
		item := &item{key: key, ctx: msg.Context(), call: c, index: i}
		if results[i] = cmp.Or(msg.Context().Err(), p.prepare(item, msg, limit, checked)); results[i] != nil {
			failed[key] = key != ""
			continue
		}
		if key != "" {
			item.partition = p.partitioner.of(item.record.Key, int32(len(partitions)))
		} else {
			item.partition = p.spread.of(writable)
		}
		items = append(items, item)
	}
	c.left = len(items)
	return p.producer.send(ctx, topic, items)
}

// partitions returns the partitions of the topic, which it creates when it is missing, or was deleted meanwhile.
func (p *publisher) partitions(ctx context.Context, topic string) ([]int32, error) {
	if err := p.topics.ensure(ctx, topic); err != nil {
		return nil, err
	}
	partitions, err := p.client.Partitions(topic)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		p.topics.forget(topic)
		if err := p.topics.ensure(ctx, topic); err != nil {
			return nil, err
		}
		partitions, err = p.client.Partitions(topic)
	}
	return partitions, err
}

// prepare makes the item's record, or tells why it cannot be carried.
func (p *publisher) prepare(item *item, msg *message.Message, limit int, checked bool) error {
	if checked {
		if err := check(msg, p.limits); err != nil {
			return err
		}
	}
	item.record = marshal(msg)
	p.propagator.Inject(msg.Context(), absent{msg, item.record})
	item.size = recordSize(item.record)
	if item.size+batchOverhead > limit {
		return fmt.Errorf("%w: the message takes up to %d bytes, the topic's max.message.bytes leaves %d", transport.ErrLimit, item.size+batchOverhead, limit)
	}
	return nil
}

// unavailable is the meaning of an error before anything was sent.
func (p *publisher) unavailable(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return reason(ctx)
	case errors.Is(err, transport.ErrClosed), errors.Is(err, transport.ErrLimit):
		return err
	case errors.Is(err, sarama.ErrClosedClient):
		return transport.ErrClosed
	}
	return fmt.Errorf("%w: %w", transport.ErrUnavailable, err)
}

// Close does nothing: the transport owns the publisher.
func (p *publisher) Close() error { return nil }

// stop refuses new calls and returns when those under way have their results.
func (p *publisher) stop() { p.producer.stop() }
