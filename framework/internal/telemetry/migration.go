package telemetry

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/internal/gauge"
	"github.com/millrace-go/millrace/outbox/brokermigration"
)

// ObserveMigration reports the phase of the migration between the brokers from and to, until stop is called.
func ObserveMigration(provider metric.MeterProvider, pool *pgxpool.Pool, schema, from, to string) (stop func(), err error) {
	gauges := gauge.Of(provider.Meter(Scope))
	phase := gauges.Int("millrace.migration.phase", "{migration}", "1 for the phase of the migration to another broker, 0 for the other phases.")
	stored := gauge.Ask(func(ctx context.Context) (brokermigration.Record, error) {
		return brokermigration.ReadRecord(ctx, pool, schema)
	})
	return gauges.Report(func(ctx context.Context, observer metric.Observer) error {
		r, err := stored.Answer(ctx)
		if err == nil {
			r, err = r.In(from, to)
		}
		if err != nil {
			return err
		}
		for _, p := range []brokermigration.Phase{brokermigration.Consume, brokermigration.Drain, brokermigration.Publish, brokermigration.Cut, brokermigration.Return} {
			is := int64(0)
			if p == r.Phase {
				is = 1
			}
			observer.ObserveInt64(phase, is, metric.WithAttributes(attribute.String("millrace.phase", string(p))))
		}
		return nil
	})
}
