package claim_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/millrace-go/millrace/middleware/claim"
)

// While Run runs, the gauges tell what is in the table.
func TestGauges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	reader := sdkmetric.NewManualReader()
	c := f.claim(claim.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: "settled"})
	f.exec(`insert into ` + f.schema + `.claim_failed (consumer, record, event_id, state, due_at)
		select 1, gen_random_uuid(), n::text, case when n <= 2 then 'dead' else 'retrying' end, now() - interval '1 minute' from generate_series(1, 5) n`)
	collect := func() map[string]float64 {
		var all metricdata.ResourceMetrics
		f.eventually(func() bool {
			all = metricdata.ResourceMetrics{}
			return reader.Collect(t.Context(), &all) == nil
		}, "a busy database answers the gauges in time")
		got := map[string]float64{}
		for _, scope := range all.ScopeMetrics {
			for _, m := range scope.Metrics {
				switch data := m.Data.(type) {
				case metricdata.Gauge[int64]:
					for _, p := range data.DataPoints {
						state, _ := p.Attributes.Value("millrace.state")
						got[m.Name+" "+state.AsString()] = float64(p.Value)
					}
				case metricdata.Gauge[float64]:
					for _, p := range data.DataPoints {
						got[m.Name] = p.Value
					}
				}
			}
		}
		return got
	}
	assert.Empty(t, collect())
	f.running(c)
	got := collect()
	assert.InDelta(t, 60, got["millrace.claim.due.age"], 30)
	delete(got, "millrace.claim.due.age")
	assert.Equal(t, map[string]float64{"millrace.claim.failed dead": 2, "millrace.claim.failed retrying": 3}, got)

	f.exec(`delete from ` + f.schema + `.claim_failed`)
	assert.Equal(t, 2.0, collect()["millrace.claim.failed dead"], "the database is asked every few seconds")
}
