package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/millrace-go/millrace/transport/kafka"
)

func TestProducerMetrics(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(1, "topic"))
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "topic", Err: kerr.NotEnoughReplicas, Count: 2})
	reader := sdkmetric.NewManualReader()
	p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs(), MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))}))
	requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("k", 0, 3)))
	requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("k", 3, 2)))
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	got := map[string]int64{}
	for _, metric := range all.ScopeMetrics[0].Metrics {
		for _, point := range metric.Data.(metricdata.Sum[int64]).DataPoints {
			topic, _ := point.Attributes.Value("messaging.destination.name")
			got[metric.Name+" "+topic.AsString()] = point.Value
		}
	}
	require.Equal(t, map[string]int64{
		"millrace.kafka.produce.messages topic": 5, "millrace.kafka.produce.batches topic": 2, "millrace.kafka.produce.failures topic": 2,
	}, got)
}
