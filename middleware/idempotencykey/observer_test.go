package idempotencykey_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

func TestRequestsAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	reader := metric.NewManualReader()
	keys := f.keys(idempotencykey.Config{MaxBody: 100, MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
	h := keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Do") {
		case "reject":
			w.WriteHeader(http.StatusNotFound)
		case "fail":
			w.WriteHeader(http.StatusBadGateway)
		case "panic":
			panic("oops")
		case "meet":
			assert.Equal(t, http.StatusConflict, post(keys.Middleware(nil), "meet", "body").Code)
		}
	}))
	with := func(key, what string) {
		r := request(key, "body")
		r.Header.Set("Do", what)
		do(h, r)
	}
	with("meet", "meet")
	with("meet", "meet")
	with("reject", "reject")
	with("fail", "fail")
	assert.Panics(t, func() { with("panic", "panic") })
	with("", "")
	post(h, "meet", "another")

	var found metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &found))
	require.Equal(t, "millrace.idempotencykey.requests", found.ScopeMetrics[0].Metrics[0].Name)
	counts := map[string]int64{}
	for _, p := range found.ScopeMetrics[0].Metrics[0].Data.(metricdata.Sum[int64]).DataPoints {
		outcome, _ := p.Attributes.Value("millrace.outcome")
		counts[outcome.AsString()] = p.Value
	}
	assert.Equal(t, map[string]int64{"executed": 1, "running": 1, "replayed": 1, "rejected": 1, "failed": 2, "invalid": 1, "reused": 1}, counts)
}
