package schedule

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// A schedule that no process fires is overdue. One of another service, and one that was removed from the program, is not told of.
func TestScheduleMetrics(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.look(Times{Expression: newYear})
	f.exec(`insert into {schema}.schedule (service, name, expression, time_zone, due_after)
		select service, 'removed', expression, time_zone, due_after from {schema}.schedule
		union all select 'shop', name, expression, time_zone, due_after from {schema}.schedule`)
	f.missedSince(longAgo)
	told := func() (overdue int64, age time.Duration) {
		reader := sdkmetric.NewManualReader()
		s, err := New(f.pool, f.scheduler().publisher, Config{
			Service: "billing", Schema: f.schema, Logger: slog.New(slog.DiscardHandler), MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		}, report(Times{Expression: newYear}))
		require.NoError(t, err)
		stop, err := s.observe()
		require.NoError(t, err)
		defer stop()
		var found metricdata.ResourceMetrics
		if reader.Collect(t.Context(), &found) != nil {
			return -1, -1 // a scrape does not wait long for the database
		}
		require.Len(t, found.ScopeMetrics, 1)
		for _, m := range found.ScopeMetrics[0].Metrics {
			switch data := m.Data.(type) {
			case metricdata.Gauge[int64]:
				overdue = data.DataPoints[0].Value
			case metricdata.Gauge[float64]:
				require.Len(t, data.DataPoints, 1)
				name, _ := data.DataPoints[0].Attributes.Value("millrace.schedule")
				assert.Equal(t, "billing/report", name.AsString())
				age = time.Duration(data.DataPoints[0].Value * float64(time.Second))
			}
		}
		return overdue, age
	}
	require.Eventually(t, func() bool {
		overdue, age := told()
		return overdue == 1 && age > 365*24*time.Hour
	}, time.Minute, time.Second)
	f.look(Times{Expression: newYear})
	require.Eventually(t, func() bool {
		overdue, age := told()
		return overdue == 0 && age == 0
	}, time.Minute, time.Second)
}
