package kafka

import (
	"context"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// tracing begins the spans of deliveries.
type tracing struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	name       string
	start      []trace.SpanStartOption
}

func newTracing(config Config, topic, consumer string) tracing {
	return tracing{
		tracer:     config.TracerProvider.Tracer(scope),
		propagator: config.Propagator,
		name:       "process " + topic,
		start: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("messaging.system", "kafka"), attribute.String("messaging.destination.name", topic),
			attribute.String("messaging.consumer.group.name", consumer),
			attribute.String("messaging.operation.name", "process"), attribute.String("messaging.operation.type", "process"))},
	}
}

// process begins the span of one delivery, in the trace in which the message was published: that of the request that
// wrote it to the outbox, say. It ends with what became of the delivery.
func (t tracing) process(ctx context.Context, record *sarama.ConsumerMessage, msg *message.Message, attempt int) (context.Context, trace.Span) {
	ctx, span := t.tracer.Start(t.propagator.Extract(ctx, propagation.MapCarrier(msg.Metadata)), t.name, t.start...)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("messaging.message.id", msg.UUID), attribute.Int("millrace.attempt", attempt),
			attribute.Int("messaging.destination.partition.id", int(record.Partition)), attribute.Int64("messaging.kafka.offset", record.Offset))
	}
	return ctx, span
}

// endSpan ends the span of a delivery. A delay that the handler asked for is no failure.
func endSpan(span trace.Span, o outcome, wished bool) {
	if o != acked && !wished {
		span.SetStatus(codes.Error, outcomeNames[o])
	}
	span.End()
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
