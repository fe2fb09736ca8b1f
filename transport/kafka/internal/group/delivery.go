package group

import (
	"bytes"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/internal/lifespan"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/lane"
	"github.com/millrace-go/millrace/transport/kafka/internal/produce"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// delivery implements transport.Delivery. It is also the context of its message.
type delivery struct {
	lifespan.Context
	transport.Rejection
	partition *partitionConsumer
	entry     *lane.Entry
	message   *message.Message
	attempt   int
	failures  int          // before this one
	number    int64        // the number of the delivery within the subscription
	after     atomic.Int64 // nanoseconds; 0: the handler asked for no delay
	unit      produce.Unit // of transactional delivery
	span      trace.Span

	record       *sarama.ConsumerMessage
	unidentified error // why the message has no event ID

	over      bool // guarded by the partition consumer's lock
	withdrawn bool // taken back before a handler got it; set before the message is nacked
}

// Attempt implements transport.Delivery.
func (d *delivery) Attempt() int { return d.attempt }

// Failures is the method that transport.Failures uses.
func (d *delivery) Failures() int { return d.failures }

// RetryAfter implements transport.Delivery.
func (d *delivery) RetryAfter(after time.Duration) { d.after.Store(int64(after)) }

// Handled implements transport.Delivery. After a nack it does nothing, even if the partition consumer has not seen the nack yet, because
// the record must be redelivered before the next one of its key.
func (d *delivery) Handled() {
	d.partition.update(func(l *lane.Lane) {
		if _, ended := d.ended(); !ended && !d.over {
			l.Handled(d.entry)
		}
	})
}

// wish returns the delay that the handler asked for. Without one, a nack counts as a failure of the message.
func (d *delivery) wish() time.Duration { return time.Duration(d.after.Load()) }

// consumed is a record in a lane.
type consumed struct {
	lane.Entry
	record  *sarama.ConsumerMessage
	key     string            // the record's, also without order
	outputs []*produce.Output // what its handler has published, for a transaction
}

// consumedOf returns the record of a lane's entry, or nil if the entry only takes offsets.
func consumedOf(e *lane.Entry) *consumed {
	c, _ := e.Value.(*consumed)
	return c
}

// newDelivery makes the delivery of an entry. It has its own payload, because the record may be delivered again.
func (p *partitionConsumer) newDelivery(e *lane.Entry) *delivery {
	c := consumedOf(e)
	record := c.record
	d := &delivery{partition: p, entry: e, attempt: e.Attempts, failures: e.Failures, record: record, message: wire.UnmarshalAs(record, e.Identity, c.key)}
	d.message.Payload = bytes.Clone(record.Value)
	d.unidentified = wire.Identify(p.config.EventID, d.message, wire.PlaceOf(record))
	d.Context.Context, d.span = process(p.messages, p.tracing, record, d.message, d.attempt)
	ctx := transport.WithDelivery(d, d)
	if p.committer != nil {
		d.unit.Begin(p.shared.Publisher, d)
		ctx = transport.WithUnit(ctx, &d.unit)
	}
	d.message.SetContext(ctx)
	return d
}

// ended reports whether the delivery has ended, and how.
func (d *delivery) ended() (o lane.Outcome, ok bool) {
	select {
	case <-d.message.Acked():
		return lane.Acked, true
	default:
	}
	select {
	case <-d.message.Nacked():
		if d.withdrawn {
			return lane.Withdrawn, true
		}
		return lane.Nacked, true
	default:
	}
	return lane.Abandoned, false
}

// Origin implements transport.Originated.
func (d *delivery) Origin() transport.Origin { return wire.OriginOf(d.record) }

// EventIDError implements transport.Originated.
func (d *delivery) EventIDError() error { return d.unidentified }

// Settled implements produce.Delivery.
func (d *delivery) Settled() bool {
	_, ended := d.ended()
	return ended
}

// await waits for the end of the delivery.
func (d *delivery) await() lane.Outcome {
	select {
	case <-d.message.Acked():
	case <-d.message.Nacked():
	case <-d.partition.messages.Done():
	}
	o, _ := d.ended() // if both have happened, the ack or nack counts
	return o
}
