package telemetry

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Scope is the instrumentation scope of the framework's metrics.
const Scope = "github.com/millrace-go/millrace/framework"

// ObservePool reports how busy the pool is, until stop is called. It uses OpenTelemetry's names for databases where there are any
// (https://opentelemetry.io/docs/specs/semconv/db/database-metrics/).
func ObservePool(provider metric.MeterProvider, pool *pgxpool.Pool) (stop func(), err error) {
	m := provider.Meter(Scope)
	var errs [4]error
	count, err := m.Int64ObservableGauge("db.client.connection.count", metric.WithUnit("{connection}"),
		metric.WithDescription("Connections of the pool, by state."))
	errs[0] = err
	most, err := m.Int64ObservableGauge("db.client.connection.max", metric.WithUnit("{connection}"),
		metric.WithDescription("Connections that the pool may have."))
	errs[1] = err
	waits, err := m.Int64ObservableCounter("millrace.pool.waits", metric.WithUnit("{acquire}"),
		metric.WithDescription("Acquired connections that had to be waited for, because all were in use."))
	errs[2] = err
	waited, err := m.Float64ObservableCounter("millrace.pool.wait_time", metric.WithUnit("s"),
		metric.WithDescription("Time spent waiting for connections."))
	errs[3] = err
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	state := func(name string) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(attribute.String("db.client.connection.state", name)))
	}
	idle, used := state("idle"), state("used")
	registration, err := m.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		s := pool.Stat()
		to.ObserveInt64(count, int64(s.IdleConns()), idle)
		to.ObserveInt64(count, int64(s.AcquiredConns()), used)
		to.ObserveInt64(most, int64(s.MaxConns()))
		to.ObserveInt64(waits, s.EmptyAcquireCount())
		to.ObserveFloat64(waited, s.EmptyAcquireWaitTime().Seconds())
		return nil
	}, count, most, waits, waited)
	if err != nil {
		return nil, err
	}
	return func() { _ = registration.Unregister() }, nil // Unregister never fails here
}
