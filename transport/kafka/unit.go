package kafka

import (
	"errors"
	"fmt"
	"sync"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/boundary"
	"github.com/millrace-go/millrace/transport"
)

// unitDomain is the transport.Unit's.
const unitDomain = "kafka"

// output is a message that is to be sent in a transaction.
type output struct {
	topic     string
	partition int32
	record    *sarama.Record
	size      int // at most so many bytes in a batch
}

// unit implements transport.Unit: what one delivery publishes. It is in memory only until its message is acked, so a
// handler that fails aborts no transaction, and a slow one keeps none open.
type unit struct {
	publisher *publisher
	delivery  *delivery

	mu      sync.Mutex
	outputs []*output
	ended   bool
}

// Domain implements transport.Unit.
func (u *unit) Domain() string { return unitDomain }

// Stage implements transport.Unit.
func (u *unit) Stage(topic string, msgs ...*message.Message) error {
	outputs, err := u.publisher.stage(topic, msgs, true)
	if err == nil {
		err = u.add(outputs)
	}
	if err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}
	return nil
}

func (u *unit) add(outputs []*output) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over() {
		return transport.ErrUnitEnded
	}
	u.outputs = append(u.outputs, outputs...)
	return nil
}

// Savepoint implements transport.Unit.
func (u *unit) Savepoint() (rollback func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := len(u.outputs)
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if !u.over() && n < len(u.outputs) {
			clear(u.outputs[n:])
			u.outputs = u.outputs[:n]
		}
	}
}

// over tells whether the unit stays as it is. It does from the ack or the nack on, which the intake sees later. The caller
// holds mu.
func (u *unit) over() bool {
	_, settled := u.delivery.ended()
	return settled || u.ended
}

// end returns what was staged. From then on nothing is.
func (u *unit) end() []*output {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	return u.outputs
}

// stage makes outputs of all messages, or of none. It checks them, or not, as batch does.
func (p *publisher) stage(topic string, msgs []*message.Message, checked bool) ([]*output, error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	ctx := msgs[0].Context()
	partitions, err := p.partitions(ctx, topic)
	if err != nil {
		return nil, p.unavailable(ctx, err)
	}
	outputs := make([]*output, len(msgs))
	for i, msg := range msgs {
		var item item
		if err := p.prepare(&item, msg, p.topics.limit(topic), checked); err != nil {
			return nil, err
		}
		o := &output{topic: topic, record: item.record, size: item.size}
		if item.record.Key != nil {
			o.partition = p.partitioner.of(item.record.Key, int32(len(partitions)))
		} else {
			o.partition = p.spread.of(partitions)
		}
		outputs[i] = o
	}
	return outputs, nil
}

// unitPublisher is the publisher of a transport with transactional delivery: it stages. It is safe for concurrent use.
type unitPublisher struct{ publisher *publisher }

// Publish implements message.Publisher. It stages all messages in the units of their contexts, or none; only when one of
// several units has ended, the others have theirs. The messages must not be changed any more.
func (p *unitPublisher) Publish(topic string, msgs ...*message.Message) error {
	if err := p.publish(topic, msgs); err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}
	return nil
}

func (p *unitPublisher) publish(topic string, msgs []*message.Message) error {
	units := make([]*unit, len(msgs))
	for i, msg := range msgs {
		var err error
		if units[i], err = p.unitOf(msg); err != nil {
			return err
		}
	}
	outputs, err := p.publisher.stage(topic, msgs, true)
	if err != nil {
		return err
	}
	var errs []error
	for from := 0; from < len(units); {
		to := from + 1
		for to < len(units) && units[to] == units[from] {
			to++
		}
		errs = append(errs, units[from].add(outputs[from:to]))
		from = to
	}
	return errors.Join(errs...)
}

func (p *unitPublisher) unitOf(msg *message.Message) (*unit, error) {
	switch u := transport.UnitFrom(msg.Context()).(type) {
	case nil:
		return nil, fmt.Errorf("%w: this transport delivers transactionally. In a handler make the message with message.NewMessageWithContext(consumed.Context(), …), "+
			"or let middleware.Unit do so for what it returns; elsewhere, in a relay say, use Transport.PlainPublisher", transport.ErrNoUnit)
	case *unit:
		if msg.Context().Value(boundary.Postgres{}) != nil {
			return nil, fmt.Errorf("%w: a PostgreSQL transaction is in the context, and it and Kafka's cannot commit together. Publish after pgtx.Run, with the consumed message's context; "+
				"or consume at least once, under a claim, and publish through the outbox", transport.ErrForeignUnit)
		}
		if u.publisher != p.publisher {
			return nil, fmt.Errorf("%w: it is of another transport to Kafka; publish by the one that the message came from, or by PlainPublisher", transport.ErrForeignUnit)
		}
		return u, nil
	default:
		return nil, fmt.Errorf("%w: %s; use Transport.PlainPublisher, which is not part of it", transport.ErrForeignUnit, u.Domain())
	}
}

// Close does nothing: the transport owns the publisher.
func (p *unitPublisher) Close() error { return nil }
