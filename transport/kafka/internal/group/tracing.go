package group

import (
	"context"
	"strconv"

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
		span.SetAttributes(attribute.String("messaging.destination.partition.id", strconv.Itoa(int(record.Partition))), attribute.Int64("messaging.kafka.offset", record.Offset))
	}
	return ctx, span
}
