package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// figures collects the metrics and sums each over its attributes.
func figures(t *testing.T, reader metric.Reader) map[string]float64 {
	var all metricdata.ResourceMetrics
	eventually(t, "a busy database answers the gauges in time", func() bool {
		all = metricdata.ResourceMetrics{}
		return reader.Collect(t.Context(), &all) == nil
	})
	got := map[string]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					got[m.Name] += float64(p.Value)
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					got[m.Name] += float64(p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					got[m.Name] = max(got[m.Name], p.Value)
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					got[m.Name] += float64(p.Sum)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					got[m.Name] += float64(p.Count)
				}
			}
		}
	}
	return got
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	broker.hold = make(chan struct{})
	f.publishMany(topic, 30, func(i int) string { return string(rune('a' + i)) })
	defer f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{MeterProvider: provider}))()
	<-broker.waiting
	eventually(t, "all shards are held", func() bool { return assert.ObjectsAreEqual([]int{16}, f.holders()) })
	before := figures(t, reader)
	assert.InDelta(t, 30, before["millrace.outbox.pending"], 0)
	assert.InDelta(t, 16, before["millrace.outbox.shards"], 0)
	assert.Greater(t, before["millrace.outbox.oldest.age"], 0.0)
	assert.Less(t, before["millrace.outbox.oldest.age"], 60.0)
	assert.Contains(t, before, "millrace.outbox.failed")
	assert.Contains(t, before, "millrace.outbox.gaps")
	close(broker.hold)
	eventually(t, "they are published", func() bool { return f.rows() == 0 })
	after := figures(t, reader)
	assert.InDelta(t, 30, after["millrace.outbox.published"], 0)
	assert.InDelta(t, 30, after["millrace.outbox.batch.size"], 0)
	assert.InDelta(t, 30, after["millrace.outbox.latency"], 0)
}

func TestFailureMetrics(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	reader := metric.NewManualReader()
	broker.refuseAll(func(p string) bool { return p == "poison" })
	f.publish("k", "poison")
	f.publish("k", "behind it")
	f.run(f.newRelay(rejecting{batchRecorder{broker}}, outbox.RelayConfig{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))}))
	eventually(t, "it is dead", func() bool { return len(f.failed("k")) == 2 })
	eventually(t, "and counted", func() bool { return figures(t, reader)["millrace.outbox.moved"] == 2 })
	assert.Positive(t, figures(t, reader)["millrace.outbox.failures"])
}

// The relay's span is linked to the span in which the event was published.
func TestSpans(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	spans := tracetest.NewSpanRecorder()
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema, Propagator: propagation.TraceContext{}})
	require.NoError(t, err)
	ctx, span := provider.Tracer("test").Start(t.Context(), "complete labour")
	require.NoError(t, pgtx.Run(ctx, f.pool, func(ctx context.Context, _ pgx.Tx) error {
		return publisher.Publish(topic, newMessage(ctx, "k", "p"))
	}))
	span.End()
	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{TracerProvider: provider, Propagator: propagation.TraceContext{}}))
	eventually(t, "it is published", func() bool { return f.rows() == 0 })
	assert.Eventually(t, func() bool { return len(spans.Ended()) == 2 }, time.Minute, time.Millisecond)
	published := spans.Ended()[1]
	assert.Equal(t, "publish "+topic, published.Name())
	require.Len(t, published.Links(), 1)
	assert.Equal(t, span.SpanContext().SpanID(), published.Links()[0].SpanContext.SpanID())
	assert.Contains(t, broker.last.Metadata.Get("traceparent"), span.SpanContext().TraceID().String(), "consumers go on with the producer's trace")
}
