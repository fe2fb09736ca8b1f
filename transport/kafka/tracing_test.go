package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestTracing: a publish and its deliveries are one trace. A message that has a trace context keeps it.
func TestTracing(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	topic := devtest.Topic(t)
	tr := connect(t, kafka.Config{Brokers: brokers(t), TracerProvider: provider, Propagator: propagation.TraceContext{}})
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})

	ctx, request := provider.Tracer("test").Start(t.Context(), "request")
	sent := newMessage("", "x")
	sent.SetContext(ctx)
	require.NoError(t, batcher(t, tr).Publish(topic, sent))
	require.Empty(t, sent.Metadata)
	msg := next(t, messages)
	handler := trace.SpanContextFromContext(msg.Context())
	require.Equal(t, request.SpanContext().TraceID(), handler.TraceID())
	msg.Nack()
	msg = next(t, messages)
	msg.Ack()
	<-msg.Context().Done()

	// As the outbox stores it.
	_, relay := provider.Tracer("test").Start(t.Context(), "relay")
	msg.SetContext(trace.ContextWithSpan(t.Context(), relay))
	require.NoError(t, batcher(t, tr).Publish(topic, msg))
	msg = next(t, messages)
	require.Equal(t, request.SpanContext().TraceID(), trace.SpanContextFromContext(msg.Context()).TraceID())
	msg.Ack()
	<-msg.Context().Done()
	require.NoError(t, tr.Close())

	var statuses []codes.Code
	for _, span := range exporter.GetSpans() {
		require.Equal(t, "process "+topic, span.Name)
		require.Equal(t, request.SpanContext().SpanID(), span.Parent.SpanID())
		statuses = append(statuses, span.Status.Code)
	}
	require.Equal(t, []codes.Code{codes.Error, codes.Unset, codes.Unset}, statuses)
}
