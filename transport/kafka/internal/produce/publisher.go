package produce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/sequence"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// Publisher implements transport.BatchPublisher. It is safe for concurrent use.
type Publisher struct {
	client      sarama.Client
	topics      *conn.Topics
	producer    *producer
	partitioner Partitioner
	spread      *Spread
	limits      transport.Limits
	propagator  propagation.TextMapPropagator
	timeout     time.Duration
}

// Config says how to publish, as kafka.Config describes it.
type Config struct {
	Compression   wire.Compression
	Partitioner   Partitioner
	Sticky        bool // messages without a key stay with a partition for a while
	Limits        transport.Limits
	Timeout       time.Duration
	Propagator    propagation.TextMapPropagator
	MeterProvider metric.MeterProvider
	Log           *slog.Logger
}

// New returns a publisher whose requests end with life.
func New(life context.Context, client sarama.Client, topics *conn.Topics, config Config) (*Publisher, error) {
	p := &Publisher{
		client:      client,
		topics:      topics,
		partitioner: config.Partitioner,
		spread:      NewSpread(config.Sticky),
		limits:      config.Limits,
		propagator:  config.Propagator,
		timeout:     config.Timeout,
	}
	var err error
	p.producer, err = newProducer(life, client, topics, config, p.place)
	return p, err
}

// place chooses the partition of a record.
func (p *Publisher) place(topic string, record *sarama.Record, now layout) (int32, error) {
	if record.Key != nil {
		return p.partitioner(topic, record.Key, int32(len(now.all)))
	}
	among := now.writable
	if len(among) == 0 {
		among = now.all
	}
	return among[p.spread.Of(len(among), wire.RecordSize(record))], nil
}

// Publish implements message.Publisher: it publishes all messages at once and joins their errors. It waits at most for Config.Timeout, or
// until the messages' own contexts end.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	return errors.Join(p.PublishBatch(context.Background(), topic, msgs)...)
}

// PublishBatch implements transport.BatchPublisher. A failed message also holds back later messages of its key that other calls have
// queued: they get transport.ErrNotSent.
//
// A message whose own context has already ended is not sent, nor are the later ones of its key. A message whose context ends while it is
// in flight gets that context's error, and may or may not have been sent; the others continue to wait.
//
// After transport.ErrUnavailable or a context's error, the message may have been sent. Publishing it again may make a duplicate with the
// same ID, but no other disorder: a late attempt of the first is refused once a later message of the partition has arrived.
func (p *Publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	return p.batch(ctx, topic, msgs, true)
}

// Forward publishes a message that came from Kafka, without checking it: it may have a binary key, for example.
func (p *Publisher) Forward(ctx context.Context, topic string, msg *message.Message) error {
	return p.batch(ctx, topic, []*message.Message{msg}, false)[0]
}

// batch is PublishBatch, with or without checking the messages.
func (p *Publisher) batch(ctx context.Context, topic string, msgs []*message.Message, checked bool) []error {
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
			results[i] = fmt.Errorf("publish to %s: %w", topic, conn.MayWrite(err, topic))
		}
	}
	return results
}

// publish stores the messages' results, or returns an error that applies to all of them.
func (p *Publisher) publish(ctx context.Context, topic string, msgs []*message.Message, results []error, checked bool) error {
	if err := wire.CheckTopic(topic); err != nil {
		return err
	}
	partitions, err := p.partitions(ctx, topic)
	if err != nil {
		return p.unavailable(ctx, err)
	}
	now := layout{all: partitions}
	now.writable, _ = p.client.WritablePartitions(topic) // if there is none, any
	limit := p.topics.Limit(topic)
	c := &sequence.Call{Results: results, Done: make(chan struct{})}
	items := make([]*sequence.Item, 0, len(msgs))
	failed := map[string]bool{}
	for i, msg := range msgs {
		key := transport.Key(msg)
		if failed[key] {
			results[i] = transport.ErrNotSent
			continue
		}
		record, size, err := p.prepare(msg, limit, checked)
		var partition int32
		if err == nil {
			partition, err = p.place(topic, record, now)
		}
		if results[i] = cmp.Or(msg.Context().Err(), err); results[i] != nil {
			failed[key] = key != ""
			continue
		}
		item := &sequence.Item{Record: record, Size: size, Key: key, Ctx: msg.Context(), Call: c, Index: i, Partition: partition}
		items = append(items, item)
	}
	c.Left = len(items)
	return p.producer.send(ctx, topic, items)
}

// partitions returns the topic's partitions. It creates the topic if it is missing or was deleted meanwhile.
func (p *Publisher) partitions(ctx context.Context, topic string) ([]int32, error) {
	if err := p.topics.Ensure(ctx, topic); err != nil {
		return nil, err
	}
	partitions, err := p.client.Partitions(topic)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		if err := p.topics.EnsureAgain(ctx, topic); err != nil {
			return nil, err
		}
		partitions, err = p.client.Partitions(topic)
	}
	return partitions, err
}

// prepare makes the message's record and returns its size. Its error says why the message cannot be published.
func (p *Publisher) prepare(msg *message.Message, limit int, checked bool) (record *sarama.Record, size int, err error) {
	if checked {
		if err := wire.Check(msg, p.limits); err != nil {
			return nil, 0, err
		}
	}
	record = wire.Marshal(msg)
	p.propagator.Inject(msg.Context(), absent{msg, record})
	size = wire.RecordSize(record)
	if size+wire.BatchOverhead > limit {
		return nil, 0, fmt.Errorf("%w: the message takes up to %d bytes, the topic's max.message.bytes leaves %d: raise that, or send less", transport.ErrLimit, size+wire.BatchOverhead, limit)
	}
	return record, size, nil
}

// unavailable classifies an error that occurred before anything was sent.
func (p *Publisher) unavailable(ctx context.Context, err error) error {
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
func (p *Publisher) Close() error { return nil }

// Stop refuses new calls and returns when the running ones have their results.
func (p *Publisher) Stop() { p.producer.stop() }

// absent is a propagation.TextMapCarrier that adds to a record only what its message does not have: an earlier publisher knows better
// where the event comes from.
type absent struct {
	msg    *message.Message
	record *sarama.Record
}

// Get implements propagation.TextMapCarrier.
func (c absent) Get(name string) string { return c.msg.Metadata[name] }

// Keys implements propagation.TextMapCarrier.
func (c absent) Keys() []string { return nil } // only Extract calls it

// Set implements propagation.TextMapCarrier.
func (c absent) Set(name, value string) {
	if !slices.ContainsFunc(c.record.Headers, func(h *sarama.RecordHeader) bool { return string(h.Key) == name }) {
		c.record.Headers = append(c.record.Headers, &sarama.RecordHeader{Key: []byte(name), Value: []byte(value)})
	}
}
