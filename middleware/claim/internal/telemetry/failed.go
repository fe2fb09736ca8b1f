package telemetry

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/internal/gauge"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
)

// observeEvery is the shortest time between two queries for metrics: several readers may collect.
const observeEvery = 10 * time.Second

// lookTimeout keeps a collection within the scrape timeout, 10 s by default, if the database does not answer: other components
// query it too, one after the other.
const lookTimeout = 2 * time.Second

// failedEvents are a consumer's events in one state.
type failedEvents struct {
	Consumer, State string
	Events          int64
	Due             *float64 // seconds
}

// tableObserver reports metrics of claim_failed.
type tableObserver struct {
	store *store.Postgres
	sql   string

	mu    sync.Mutex
	asked time.Time
	found []failedEvents
}

// Watch reports the metrics of the store's tables until stop is called.
func (o *Observer) Watch(s *store.Postgres) (stop func(), err error) {
	gauges := gauge.Of(o.meter)
	failed := gauges.Int("millrace.claim.failed", "{event}", "Events that failed and are not settled, by state: nacked (the broker redelivers them), retrying, blocked, dead.")
	due := gauges.Float("millrace.claim.due.age", "s", "For how long the longest of the retrying events has been due; 0 when none is.")
	t := &tableObserver{store: s, sql: store.Query("claim_observe", s.Schema)}
	return gauges.Report(func(ctx context.Context, to metric.Observer) error {
		found, err := t.look(ctx)
		ages := map[string]float64{}
		for _, f := range found {
			consumer := attribute.String("millrace.consumer", f.Consumer)
			to.ObserveInt64(failed, f.Events, metric.WithAttributes(consumer, attribute.String("millrace.state", f.State)))
			if ages[f.Consumer] += 0; f.Due != nil {
				ages[f.Consumer] = *f.Due
			}
		}
		for consumer, age := range ages {
			to.ObserveFloat64(due, age, metric.WithAttributes(attribute.String("millrace.consumer", consumer)))
		}
		return err
	})
}

func (t *tableObserver) look(ctx context.Context) ([]failedEvents, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.asked) < observeEvery {
		return t.found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	rows, err := t.store.Pool.Query(ctx, t.sql)
	if err != nil {
		return nil, fmt.Errorf("count failed events: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[failedEvents])
	if err != nil {
		return nil, fmt.Errorf("count failed events: %w", err)
	}
	// States that have no events any more become zero, instead of keeping the last value.
	for _, before := range t.found {
		same := func(f failedEvents) bool { return f.Consumer == before.Consumer && f.State == before.State }
		if !slices.ContainsFunc(found, same) {
			found = append(found, failedEvents{Consumer: before.Consumer, State: before.State})
		}
	}
	t.asked, t.found = time.Now(), found
	return found, nil
}
