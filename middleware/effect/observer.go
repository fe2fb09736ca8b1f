package effect

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/internal/gauge"
	"github.com/millrace-go/millrace/internal/pgschema"
)

// scope is the instrumentation scope of the metrics.
const scope = "github.com/millrace-go/millrace/middleware/effect"

// observer reports the ledger's metrics to OpenTelemetry.
type observer struct {
	calls, replays, reconciliations, conflicts metric.Int64Counter
}

func newObserver(provider metric.MeterProvider) (*observer, error) {
	m := provider.Meter(scope)
	o := &observer{}
	var errs [4]error
	o.calls, errs[0] = m.Int64Counter("millrace.effect.calls", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that have ended, by outcome: done, not_done, pending, doubt."))
	o.replays, errs[1] = m.Int64Counter("millrace.effect.replayed", metric.WithUnit("{effect}"),
		metric.WithDescription("Effects that were done before, and were not called again."))
	o.reconciliations, errs[2] = m.Int64Counter("millrace.effect.reconciled", metric.WithUnit("{effect}"),
		metric.WithDescription("Effects in doubt that the provider's answer settled, by outcome: done, not_done."))
	o.conflicts, errs[3] = m.Int64Counter("millrace.effect.conflicts", metric.WithUnit("{effect}"),
		metric.WithDescription("Calls that succeeded after another one for the key had begun: probably two effects."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	o.conflicts.Add(context.Background(), 0) // an alert sees the first conflict as an increase
	return o, nil
}

func outcomeAttribute(state string) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String("millrace.outcome", state))
}

func (o *observer) called(ctx context.Context, state string) {
	o.calls.Add(ctx, 1, outcomeAttribute(state))
}
func (o *observer) replayed(ctx context.Context) { o.replays.Add(ctx, 1) }
func (o *observer) conflict(ctx context.Context) { o.conflicts.Add(ctx, 1) }
func (o *observer) reconciled(ctx context.Context, state string) {
	o.reconciliations.Add(ctx, 1, outcomeAttribute(state))
}

// inDoubt is what the database holds about effects in doubt.
type inDoubt struct {
	doubts int64
	oldest float64 // the age in seconds
}

// start reports the gauges that need a query, until stop is called. Each process reports the whole schema.
func (o *observer) start(l *Ledger) (stop func(), err error) {
	gauges := gauge.Of(l.cfg.MeterProvider.Meter(scope))
	doubts := gauges.Int("millrace.effect.in_doubt", "{effect}", "Effects in doubt, of all processes that use the schema.")
	oldest := gauges.Float("millrace.effect.in_doubt.oldest.age", "s", "Age of the oldest doubt; 0 when there is none.")
	query := pgschema.Query(files, "observe", l.cfg.Schema)
	stored := gauge.Ask(func(ctx context.Context) (found inDoubt, err error) {
		err = l.pool.QueryRow(ctx, query).Scan(&found.doubts, &found.oldest)
		return found, err
	})
	return gauges.Report(func(ctx context.Context, to metric.Observer) error {
		found, err := stored.Answer(ctx)
		if err != nil {
			return err
		}
		to.ObserveInt64(doubts, found.doubts)
		to.ObserveFloat64(oldest, found.oldest)
		return nil
	})
}
