package telemetry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/outbox"
)

func TestObserver(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	o, err := New(Config{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), TracerProvider: otel.GetTracerProvider(), Propagator: otel.GetTextMapPropagator(),
	})
	require.NoError(t, err)
	for _, outcome := range []string{OutcomeDuplicate, OutcomeContended, OutcomeFailed, OutcomeBlocked, OutcomeDead, OutcomeDuplicate} {
		o.Count(t.Context(), "notify", outcome)
	}
	began := time.Now().Add(-time.Second)
	o.Completed(t.Context(), store.Key{Consumer: "notify", EventID: outbox.NewID()}, began)
	o.Completed(t.Context(), store.Key{Consumer: "notify", EventID: "it has no time"}, began)

	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	counts, histograms := map[string]int64{}, map[string]metricdata.HistogramDataPoint[float64]{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			assert.Equal(t, "millrace.claim.events", m.Name)
			for _, p := range data.DataPoints {
				consumer, _ := p.Attributes.Value("millrace.consumer")
				assert.Equal(t, "notify", consumer.AsString())
				outcome, _ := p.Attributes.Value("millrace.outcome")
				counts[outcome.AsString()] = p.Value
			}
		case metricdata.Histogram[float64]:
			require.Len(t, data.DataPoints, 1)
			histograms[m.Name] = data.DataPoints[0]
		}
	}
	assert.Equal(t, map[string]int64{"completed": 2, "duplicate": 2, "contended": 1, "failed": 1, "blocked": 1, "dead": 1}, counts)
	assert.Equal(t, uint64(1), histograms["millrace.claim.critical_time"].Count)
	assert.Less(t, histograms["millrace.claim.critical_time"].Sum, 60.0)
	assert.Equal(t, uint64(2), histograms["millrace.claim.duration"].Count)
	assert.GreaterOrEqual(t, histograms["millrace.claim.duration"].Sum, 2.0)
}
