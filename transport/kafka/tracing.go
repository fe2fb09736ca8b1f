package kafka

import (
	"context"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/internal/tracing"
)

// process begins the span of one delivery, in the trace in which the message was published.
func process(ctx context.Context, d tracing.Deliveries, record *sarama.ConsumerMessage, msg *message.Message, attempt int) (context.Context, trace.Span) {
	ctx, span := d.Begin(ctx, msg, attempt)
	if span.IsRecording() {
		span.SetAttributes(attribute.Int("messaging.destination.partition.id", int(record.Partition)), attribute.Int64("messaging.kafka.offset", record.Offset))
	}
	return ctx, span
}

// absent adds to a record what its message does not have: a publisher before this one knows better where the event comes
// from. It implements propagation.TextMapCarrier.
type absent struct {
	msg    *message.Message
	record *sarama.Record
}

// Get implements propagation.TextMapCarrier.
func (c absent) Get(name string) string { return c.msg.Metadata[name] }

// Keys implements propagation.TextMapCarrier.
func (c absent) Keys() []string { return nil } // for Extract only

// Set implements propagation.TextMapCarrier.
func (c absent) Set(name, value string) {
	if _, ok := c.msg.Metadata[name]; !ok {
		c.record.Headers = append(c.record.Headers, &sarama.RecordHeader{Key: []byte(name), Value: []byte(value)})
	}
}
