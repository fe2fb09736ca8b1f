// Package tracing begins the spans of deliveries, the same ones for every transport, by OpenTelemetry's conventions for
// messaging (https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/).
package tracing

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Deliveries begins the spans of one consumer of one topic. It is safe for concurrent use.
type Deliveries struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	name       string
	start      []trace.SpanStartOption
}

// NewDeliveries returns what begins the spans of a consumer; scope names their origin, system the broker. A nil provider or
// propagator is OpenTelemetry's global one.
func NewDeliveries(provider trace.TracerProvider, propagator propagation.TextMapPropagator, scope, system, topic, consumer string) Deliveries {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	if propagator == nil {
		propagator = otel.GetTextMapPropagator()
	}
	return Deliveries{
		tracer: provider.Tracer(scope), propagator: propagator, name: "process " + topic,
		start: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("messaging.system", system), attribute.String("messaging.destination.name", topic),
			attribute.String("messaging.consumer.group.name", consumer),
			attribute.String("messaging.operation.name", "process"), attribute.String("messaging.operation.type", "process"))},
	}
}

// Begin begins the span of one delivery, in the trace in which the message was published: that of the request that wrote
// it to the outbox, say. A span that ctx has, such as that of the broker's client, is linked then; it is the parent of a
// delivery whose message tells of no trace. attempt is 0 where nobody counts.
func (d Deliveries) Begin(ctx context.Context, msg *message.Message, attempt int) (context.Context, trace.Span) {
	start := d.start
	local := trace.SpanContextFromContext(ctx)
	ctx = d.propagator.Extract(ctx, propagation.MapCarrier(msg.Metadata))
	if local.IsValid() && !trace.SpanContextFromContext(ctx).Equal(local) {
		start = append(start[:len(start):len(start)], trace.WithLinks(trace.Link{SpanContext: local}))
	}
	ctx, span := d.tracer.Start(ctx, d.name, start...)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("messaging.message.id", msg.UUID))
		if attempt > 0 {
			span.SetAttributes(attribute.Int("millrace.attempt", attempt))
		}
	}
	return ctx, span
}

// End ends the span of a delivery with what became of it.
func End(span trace.Span, outcome string, failed bool) {
	if failed {
		span.SetStatus(codes.Error, outcome)
	}
	span.End()
}

// maxValueBytes keeps the context of a trace smaller than any broker's limits: W3C's traceparent has 55 bytes.
const maxValueBytes = 256

// Inject adds the trace of ctx to what travels with a message, unless that tells of a trace: a publisher before this one
// knows better where the event comes from. Long entries are left out, because the message must not be refused for them.
func Inject(ctx context.Context, propagator propagation.TextMapPropagator, headers map[string]string) {
	if !trace.SpanContextFromContext(ctx).IsValid() || headers["traceparent"] != "" {
		return
	}
	propagator.Inject(ctx, absent(headers))
}

// absent is a carrier that sets only what is not there.
type absent map[string]string

// Get implements propagation.TextMapCarrier.
func (c absent) Get(name string) string { return c[name] }

// Keys implements propagation.TextMapCarrier.
func (c absent) Keys() []string { return nil } // for Extract only

// Set implements propagation.TextMapCarrier.
func (c absent) Set(name, value string) {
	if _, ok := c[name]; !ok && len(value) <= maxValueBytes {
		c[name] = value
	}
}
