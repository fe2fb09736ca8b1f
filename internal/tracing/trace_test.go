package tracing_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/memory"
	"github.com/millrace-go/millrace/transport/pubsub"
)

func TestMain(m *testing.M) {
	devtest.Main(m,
		// sarama's metrics have one goroutine for the life of the process, and Google's client leaves one of each stream.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		goleak.IgnoreTopFunction("cloud.google.com/go/pubsub/v2.(*messageIterator).streamKeepAliveHandler"))
}

// TestOneTrace: an HTTP request, what its transaction publishes, the claim of that, its handler's effect, what that handler
// publishes and the second handler's effect are of the trace that the client of the request began.
func TestOneTrace(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, p trace.TracerProvider, c propagation.TextMapPropagator) (transport.Transport, error){
		"memory": func(_ *testing.T, p trace.TracerProvider, c propagation.TextMapPropagator) (transport.Transport, error) {
			return memory.New(memory.Config{TracerProvider: p, Propagator: c})
		},
		"pubsub": func(t *testing.T, p trace.TracerProvider, c propagation.TextMapPropagator) (transport.Transport, error) {
			t.Helper()
			return pubsub.New(t.Context(), pubsub.Config{
				ProjectID: devtest.Project(t), TracerProvider: p, Propagator: c, ClientOptions: []option.ClientOption{
					option.WithEndpoint(devtest.Start(t, devstack.PubSub).PubSubHost()), option.WithoutAuthentication(),
					option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
				},
			})
		},
		"kafka": func(t *testing.T, p trace.TracerProvider, c propagation.TextMapPropagator) (transport.Transport, error) {
			t.Helper()
			return kafka.New(t.Context(), kafka.Config{
				Brokers: devtest.Start(t, devstack.Kafka).KafkaBrokers(), TracerProvider: p, Propagator: c,
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exporter := tracetest.NewInMemoryExporter()
			provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
			tr, err := open(t, provider, propagation.TraceContext{})
			require.NoError(t, err)
			one, two := devtest.Topic(t), devtest.Topic(t)
			parent := system(t, tr, provider, one, two)
			got := map[string]tracetest.SpanStub{}
			for _, span := range exporter.GetSpans() {
				if span.SpanContext.TraceID() == parent.TraceID() {
					got[span.Name+" "+attributeOf(span.Attributes, "millrace.consumer").AsString()] = span
				}
			}
			request := got["request "]
			assert.Equal(t, parent.SpanID(), request.Parent.SpanID())
			assert.Equal(t, request.SpanContext.SpanID(), got["process "+one+" "].Parent.SpanID(), "the event is the request's")
			for consumer, topic := range map[string]string{"first": one, "second": two} {
				process, claimed, effect := got["process "+topic+" "], got["claim labour/"+consumer], got["effect "+consumer]
				assert.Equal(t, process.SpanContext.SpanID(), claimed.Parent.SpanID())
				assert.Equal(t, claimed.SpanContext.SpanID(), effect.Parent.SpanID())
				assert.Equal(t, "completed", attributeOf(claimed.Attributes, "millrace.outcome").AsString())
				id := attributeOf(claimed.Attributes, "messaging.message.id")
				assert.NotEmpty(t, id.AsString())
				assert.Equal(t, id, attributeOf(process.Attributes, "messaging.message.id"))
				assert.Equal(t, trace.SpanKindConsumer, process.SpanKind)
				assert.Equal(t, trace.SpanKindInternal, claimed.SpanKind)
			}
			assert.Equal(t, got["effect first"].SpanContext.SpanID(), got["process "+two+" "].Parent.SpanID(), "what a handler publishes is its own")
			links := 0
			for _, span := range exporter.GetSpans() {
				for _, link := range span.Links {
					if span.SpanKind == trace.SpanKindProducer && link.SpanContext.TraceID() == parent.TraceID() {
						links++
					}
				}
			}
			assert.Equal(t, 2, links, "the relay's spans, of batches of many traces, are linked")
		})
	}
}

func attributeOf(all []attribute.KeyValue, key attribute.Key) attribute.Value {
	for _, a := range all {
		if a.Key == key {
			return a.Value
		}
	}
	return attribute.Value{}
}

// system sends one request through all parts, and returns the client's span. It ends when all have ended.
func system(t *testing.T, tr transport.Transport, provider trace.TracerProvider, one, two string) trace.SpanContext {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(ctx, pool, schema))
	require.NoError(t, claim.Migrate(ctx, pool, schema))
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema, Propagator: propagation.TraceContext{}})
	require.NoError(t, err)
	publisher, err := tr.Publisher()
	require.NoError(t, err)
	relay, err := outbox.NewRelay(pool, publisher, outbox.RelayConfig{Schema: schema, TracerProvider: provider, Propagator: propagation.TraceContext{}})
	require.NoError(t, err)
	c, err := claim.New(claim.NewPostgresStore(pool, claim.Schema(schema)), claim.Config{Service: "labour", TracerProvider: provider, Propagator: propagation.TraceContext{}})
	require.NoError(t, err)

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(c.Middleware)
	tracer, over := provider.Tracer("test"), make(chan struct{})
	handle := func(name, topic string, fn func(ctx context.Context) error) {
		s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: name})
		require.NoError(t, err)
		router.AddConsumerHandler(name, topic, s, func(msg *message.Message) error {
			ctx, span := tracer.Start(msg.Context(), "effect", trace.WithAttributes(attribute.String("millrace.consumer", name)))
			defer span.End()
			return fn(ctx)
		})
	}
	handle("first", one, func(ctx context.Context) error {
		return events.Publish(two, message.NewMessageWithContext(ctx, outbox.NewID(), []byte("2")))
	})
	handle("second", two, func(context.Context) error { close(over); return nil })

	server := httptest.NewServer(otelhttp.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := pgtx.Run(r.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
			return events.Publish(one, message.NewMessageWithContext(ctx, outbox.NewID(), []byte("1")))
		}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}), "request", otelhttp.WithTracerProvider(provider), otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithSpanNameFormatter(func(string, *http.Request) string { return "request" })))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- relay.Run(running) }()
	go func() { ended <- router.Run(running) }()
	<-router.Running()

	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
	req, err := http.NewRequestWithContext(trace.ContextWithSpanContext(ctx, parent), http.MethodPost, server.URL, http.NoBody)
	require.NoError(t, err)
	propagation.TraceContext{}.Inject(req.Context(), propagation.HeaderCarrier(req.Header))
	response, err := server.Client().Do(req)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)

	select {
	case <-over:
	case <-ctx.Done():
		t.Error("the second handler was not called")
	}
	server.Close()
	stop()
	for range cap(ended) {
		require.NoError(t, <-ended)
	}
	require.NoError(t, tr.Close())
	return parent
}
