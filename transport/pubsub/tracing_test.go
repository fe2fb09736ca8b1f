package pubsub_test

import (
	"context"
	"strings"
	"testing"

	gcp "cloud.google.com/go/pubsub/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestTracing: a publish and its consumption are one trace, and what carries it is not sent on. It sets the global tracer
// provider, the only one that Google's client takes.
func TestTracing(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	t.Cleanup(func() { otel.SetTracerProvider(before) })

	options := emulator(t)
	topic := devtest.Topic(t)
	tr := connect(t, pubsub.Config{ClientOptions: options, Tracing: true})
	s, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, initialize(t, tr, topic, transport.SubscriberConfig{Consumer: "raw"}))

	require.NoError(t, batcher(t, tr).Publish(topic, newMessage("", "x")))
	msg := next(t, messages)
	handler := trace.SpanContextFromContext(msg.Context())
	require.True(t, handler.IsValid(), "a handler's spans have a parent")
	require.Empty(t, msg.Metadata)
	msg.Ack()
	require.NoError(t, s.Close())

	names := map[string]trace.TraceID{}
	for _, span := range exporter.GetSpans() {
		if name, ok := strings.CutPrefix(span.Name, topic); ok {
			names[name] = span.SpanContext.TraceID()
		}
	}
	require.Equal(t, handler.TraceID(), names[" create"])
	require.Equal(t, handler.TraceID(), names[".c subscribe"])
	require.Equal(t, handler.TraceID(), names[".c process"])

	// It did travel in an attribute: that the metadata are empty says something.
	ctx, done := context.WithCancel(t.Context())
	require.NoError(t, rawClient(t, options).Subscriber(subscriptionName(topic, "raw")).Receive(ctx, func(_ context.Context, m *gcp.Message) {
		assert.Contains(t, m.Attributes["googclient_traceparent"], handler.TraceID().String())
		m.Ack()
		done()
	}))
}
