package transport_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/memory"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// published returns OpenTelemetry's messaging attributes, each with its type.
func published() map[attribute.Key]attribute.Type {
	all := map[attribute.Key]attribute.Type{}
	for _, a := range []attribute.KeyValue{
		semconv.MessagingSystemKafka, semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName(""),
		semconv.MessagingBatchMessageCount(0), semconv.MessagingClientID(""), semconv.MessagingConsumerGroupName(""),
		semconv.MessagingDestinationName(""), semconv.MessagingDestinationPartitionID(""), semconv.MessagingDestinationSubscriptionName(""),
		semconv.MessagingGCPPubSubMessageDeliveryAttempt(0), semconv.MessagingGCPPubSubMessageOrderingKey(""),
		semconv.MessagingKafkaMessageKey(""), semconv.MessagingKafkaMessageTombstone(true), semconv.MessagingKafkaOffset(0),
		semconv.MessagingMessageBodySize(0), semconv.MessagingMessageEnvelopeSize(0), semconv.MessagingMessageID(""),
	} {
		all[a.Key] = a.Value.Type()
	}
	return all
}

// Each messaging attribute of a span or a metric is one of OpenTelemetry's and has its type. The partition was once an integer,
// and backends refused it beside the strings of other services.
func TestSemanticConventions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		open func(*testing.T, *sdktrace.TracerProvider, *sdkmetric.MeterProvider) (transport.Transport, error)
		want []attribute.KeyValue
	}{
		"memory": {func(_ *testing.T, traces *sdktrace.TracerProvider, _ *sdkmetric.MeterProvider) (transport.Transport, error) {
			return memory.New(memory.Config{TracerProvider: traces})
		}, []attribute.KeyValue{semconv.MessagingSystemKey.String("memory")}},
		"pubsub": {func(t *testing.T, traces *sdktrace.TracerProvider, metrics *sdkmetric.MeterProvider) (transport.Transport, error) {
			t.Helper()
			return pubsub.New(t.Context(), pubsub.Config{
				ProjectID: devtest.Project(t), TracerProvider: traces, MeterProvider: metrics, ClientOptions: []option.ClientOption{
					option.WithEndpoint(devtest.Start(t, devstack.PubSub).PubSubHost()), option.WithoutAuthentication(),
					option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
				},
			})
		}, []attribute.KeyValue{semconv.MessagingSystemGCPPubSub}},
		"kafka": {func(t *testing.T, traces *sdktrace.TracerProvider, metrics *sdkmetric.MeterProvider) (transport.Transport, error) {
			t.Helper()
			return kafka.New(t.Context(), kafka.Config{Brokers: devtest.Start(t, devstack.Kafka).KafkaBrokers(), TracerProvider: traces, MeterProvider: metrics, Topics: kafka.Topics{Partitions: 1}})
		}, []attribute.KeyValue{semconv.MessagingSystemKafka, semconv.MessagingDestinationPartitionID("0"), semconv.MessagingKafkaOffset(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spans, reader := tracetest.NewInMemoryExporter(), sdkmetric.NewManualReader()
			tr, err := c.open(t, sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)), sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
			require.NoError(t, err)
			topic, types := devtest.Topic(t), published()
			s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "c"})
			require.NoError(t, err)
			messages, err := s.Subscribe(t.Context(), topic)
			require.NoError(t, err)
			publisher, err := tr.Publisher()
			require.NoError(t, err)
			require.NoError(t, publisher.Publish(topic, message.NewMessage("event-1", []byte("{}"))))
			select {
			case msg := <-messages:
				metrics := attributesOf(t, reader) // while the partition is assigned
				msg.Ack()
				require.NoError(t, tr.Close())
				metrics = append(metrics, attributesOf(t, reader)...)
				require.Len(t, spans.GetSpans(), 1)
				all := spans.GetSpans()[0].Attributes
				for _, want := range append(c.want, semconv.MessagingDestinationName(topic), semconv.MessagingConsumerGroupName("c"),
					semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("process"), semconv.MessagingMessageID("event-1")) {
					assert.Contains(t, all, want)
				}
				for _, a := range append(all, metrics...) {
					if strings.HasPrefix(string(a.Key), "messaging.") {
						assert.Contains(t, types, a.Key)
						assert.Equal(t, types[a.Key], a.Value.Type(), a.Key)
					}
				}
			case <-time.After(time.Minute):
				require.Fail(t, "no message came")
			}
		})
	}
}

// attributesOf returns the attributes of all metrics.
func attributesOf(t *testing.T, reader *sdkmetric.ManualReader) (all []attribute.KeyValue) {
	t.Helper()
	var collected metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &collected))
	for _, scope := range collected.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					all = append(all, p.Attributes.ToSlice()...)
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					all = append(all, p.Attributes.ToSlice()...)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					all = append(all, p.Attributes.ToSlice()...)
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					all = append(all, p.Attributes.ToSlice()...)
				}
			}
		}
	}
	return all
}
