package produce

import (
	"errors"
	"fmt"
	"sync"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/boundary"
	"github.com/millrace-go/millrace/transport"
)

// unitDomain is the Domain of every Unit.
const unitDomain = "kafka"

// Output is a message to be sent in a transaction. Its partition is chosen when it is sent.
type Output struct {
	Topic  string
	Record *sarama.Record
	Size   int // its largest size in a batch, in bytes
}

// Unit implements transport.Unit: it holds what one delivery publishes. It stays in memory until its message is acked, so a failed
// handler aborts no transaction, and a slow one keeps none open. Its zero value has not begun.
type Unit struct {
	publisher *Publisher
	delivery  Delivery

	mu      sync.Mutex
	outputs []*Output
	ended   bool
}

// Delivery is a delivery whose handler publishes.
type Delivery interface {
	// Settled reports whether the message was acked or nacked.
	Settled() bool
}

// Begin makes it the unit of a delivery, before anything else is called. p stages its messages.
func (u *Unit) Begin(p *Publisher, d Delivery) { u.publisher, u.delivery = p, d }

// Domain implements transport.Unit.
func (u *Unit) Domain() string { return unitDomain }

// Stage implements transport.Unit.
func (u *Unit) Stage(topic string, msgs ...*message.Message) error {
	outputs, err := u.publisher.Stage(topic, msgs, true)
	if err == nil {
		err = u.add(outputs)
	}
	if err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}
	return nil
}

// add takes outputs over.
func (u *Unit) add(outputs []*Output) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over() {
		return transport.ErrUnitEnded
	}
	if u.outputs == nil { // mostly
		u.outputs = outputs
	} else {
		u.outputs = append(u.outputs, outputs...)
	}
	return nil
}

// Savepoint implements transport.Unit.
func (u *Unit) Savepoint() (rollback func()) {
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

// over reports whether the unit can no longer change. That is so from the ack or the nack on, which the partition consumer sees later.
// The caller holds mu.
func (u *Unit) over() bool {
	return u.delivery.Settled() || u.ended
}

// End returns what was staged. Nothing can be staged afterwards.
func (u *Unit) End() []*Output {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	return u.outputs
}

// Stage makes outputs of all messages, or of none. Like batch, it checks them if checked is set.
func (p *Publisher) Stage(topic string, msgs []*message.Message, checked bool) ([]*Output, error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	ctx := msgs[0].Context()
	partitions, err := p.partitions(ctx, topic)
	if err != nil {
		return nil, p.unavailable(ctx, err)
	}
	outputs := make([]*Output, len(msgs))
	for i, msg := range msgs {
		record, size, err := p.prepare(msg, p.topics.Limit(topic), checked)
		if err == nil && record.Key != nil { // the partition may be another one when it is sent
			_, err = p.partitioner(topic, record.Key, int32(len(partitions)))
		}
		if err != nil {
			return nil, err
		}
		outputs[i] = &Output{Topic: topic, Record: record, Size: size}
	}
	return outputs, nil
}

// UnitPublisher is the publisher of a transport with transactional delivery: it stages messages. It is safe for concurrent use.
type UnitPublisher struct{ Publisher *Publisher }

// Publish implements message.Publisher. It stages all messages in the units of their contexts, or none. Only if the messages have several
// units and one has ended, the other units keep theirs. The messages must not be changed afterwards.
func (p *UnitPublisher) Publish(topic string, msgs ...*message.Message) error {
	if err := p.publish(topic, msgs); err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}
	return nil
}

func (p *UnitPublisher) publish(topic string, msgs []*message.Message) error {
	units := make([]*Unit, len(msgs))
	for i, msg := range msgs {
		var err error
		if units[i], err = p.unitOf(msg); err != nil {
			return err
		}
	}
	outputs, err := p.Publisher.Stage(topic, msgs, true)
	if err != nil {
		return err
	}
	var errs []error
	for from := 0; from < len(units); {
		to := from + 1
		for to < len(units) && units[to] == units[from] {
			to++
		}
		errs = append(errs, units[from].add(outputs[from:to:to]))
		from = to
	}
	return errors.Join(errs...)
}

func (p *UnitPublisher) unitOf(msg *message.Message) (*Unit, error) {
	switch u := transport.UnitFrom(msg.Context()).(type) {
	case nil:
		return nil, fmt.Errorf("%w: this transport delivers transactionally. In a handler make the message with message.NewMessageWithContext(consumed.Context(), …), "+
			"or let middleware.Unit do so for what it returns; elsewhere, in a relay say, use Transport.PlainPublisher", transport.ErrNoUnit)
	case *Unit:
		if msg.Context().Value(boundary.Postgres{}) != nil {
			return nil, fmt.Errorf("%w: a PostgreSQL transaction is in the context, and it and Kafka's cannot commit together. Publish after pgtx.Run, with the consumed message's context; "+
				"or consume at least once, under a claim, and publish through the outbox", transport.ErrForeignUnit)
		}
		if u.publisher != p.Publisher {
			return nil, fmt.Errorf("%w: it is of another transport to Kafka; publish by the one that the message came from, or by PlainPublisher", transport.ErrForeignUnit)
		}
		return u, nil
	default:
		return nil, fmt.Errorf("%w: %s; use Transport.PlainPublisher, which is not part of it", transport.ErrForeignUnit, u.Domain())
	}
}

// Close does nothing: the transport owns the publisher.
func (p *UnitPublisher) Close() error { return nil }
