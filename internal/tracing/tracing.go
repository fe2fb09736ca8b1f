// Package tracing begins the spans of deliveries, in the same way for every transport, by OpenTelemetry's conventions for messaging
// (https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/).
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

// NewDeliveries returns the Deliveries of a consumer. scope is the instrumentation scope, system the broker's name. If the provider or
// the propagator is nil, OpenTelemetry's global one is used.
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

// Begin begins the span of one delivery, in the trace in which the message was published, such as that of the request that wrote it to
// the outbox. A span in ctx, such as that of the broker's client, is then linked; if the message has no trace, that span is the parent.
// attempt is 0 if attempts are not counted.
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

// End ends the span of a delivery with its outcome.
func End(span trace.Span, outcome string, failed bool) {
	if failed {
		span.SetStatus(codes.Error, outcome)
	}
	span.End()
}

// maxValueBytes keeps the trace context smaller than any broker's limits: W3C's traceparent has 55 bytes.
const maxValueBytes = 256

// Inject adds the trace of ctx to a message's headers, unless they have one: an earlier publisher knows better where the event comes
// from. It leaves out long entries, which could make the broker refuse the message.
func Inject(ctx context.Context, propagator propagation.TextMapPropagator, headers map[string]string) {
	if !trace.SpanContextFromContext(ctx).IsValid() || headers["traceparent"] != "" {
		return
	}
	propagator.Inject(ctx, absent(headers))
}

// absent is a carrier that sets only missing headers.
type absent map[string]string

// Get implements propagation.TextMapCarrier.
func (c absent) Get(name string) string { return c[name] }

// Keys implements propagation.TextMapCarrier.
func (c absent) Keys() []string { return nil } // only Extract calls it

// Set implements propagation.TextMapCarrier.
func (c absent) Set(name, value string) {
	if _, ok := c[name]; !ok && len(value) <= maxValueBytes {
		c[name] = value
	}
}
