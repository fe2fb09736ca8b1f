package gauge_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/millrace-go/millrace/internal/gauge"
)

func TestGaugesAreReportedUntilTheEnd(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	gauges := gauge.Of(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("m"))
	count, age := gauges.Int("count", "{event}", "Events."), gauges.Float("age", "s", "Age.")
	stop, err := gauges.Report(func(_ context.Context, to metric.Observer) error {
		to.ObserveInt64(count, 7)
		to.ObserveFloat64(age, 0.5)
		return nil
	})
	require.NoError(t, err)
	var found metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &found))
	require.Len(t, found.ScopeMetrics, 1)
	assert.Len(t, found.ScopeMetrics[0].Metrics, 2)
	stop()
	require.NoError(t, reader.Collect(t.Context(), &found))
	assert.Empty(t, found.ScopeMetrics)
}

func TestGaugesToldWrong(t *testing.T) {
	t.Parallel()
	gauges := gauge.Of(sdkmetric.NewMeterProvider().Meter("m"))
	gauges.Int("no name", "", "")
	gauges.Float("a", "", "")
	_, err := gauges.Report(func(context.Context, metric.Observer) error { return nil })
	assert.ErrorContains(t, err, "no name")
}

// A question is asked again after a while, and at once after an error.
func TestQuestionsAreNotAskedTooOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, failure := 0, errors.New("away")
		q := gauge.Ask(func(context.Context) (int, error) {
			asked++
			return asked, failure
		})
		for range 2 {
			_, err := q.Answer(t.Context())
			require.ErrorIs(t, err, failure)
		}
		failure = nil
		for range 9 {
			n, err := q.Answer(t.Context())
			require.NoError(t, err)
			assert.Equal(t, 3, n)
		}
		time.Sleep(time.Minute)
		n, err := q.Answer(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 4, n)
	})
}

// A database that does not answer holds up no collection for long.
func TestQuestionsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		_, err := gauge.Ask(func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}).Answer(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Less(t, time.Since(begun), 10*time.Second)
	})
}
