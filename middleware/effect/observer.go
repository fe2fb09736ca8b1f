package effect

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// scope names the instruments' origin.
const scope = "github.com/millrace-go/millrace/middleware/effect"

// observeEvery bounds how often a collection of metrics asks the database.
const observeEvery = 5 * time.Second

// lookTimeout keeps a collection within a scrape's timeout, 10 s by default, when the database does not answer: other parts
// ask it, too, one after the other.
const lookTimeout = 2 * time.Second

// observer tells OpenTelemetry what the ledger does.
type observer struct {
	calls, replays, reconciliations, conflicts metric.Int64Counter

	mu     sync.Mutex
	asked  time.Time
	doubts int64
	oldest float64 // seconds
}

func newObserver(provider metric.MeterProvider) (*observer, error) {
	m := provider.Meter(scope)
	o := &observer{}
	var errs [4]error
	o.calls, errs[0] = m.Int64Counter("millrace.effect.calls", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that have ended, by outcome: done, not_done, doubt."))
	o.replays, errs[1] = m.Int64Counter("millrace.effect.replayed", metric.WithUnit("{effect}"),
		metric.WithDescription("Effects that were done before, and were not called again."))
	o.reconciliations, errs[2] = m.Int64Counter("millrace.effect.reconciled", metric.WithUnit("{effect}"),
		metric.WithDescription("Effects in doubt that the provider's answer settled, by outcome: done, not_done."))
	o.conflicts, errs[3] = m.Int64Counter("millrace.effect.conflicts", metric.WithUnit("{effect}"),
		metric.WithDescription("Calls that succeeded after another one for the key had begun: probably two effects."))
	return o, errors.Join(errs[:]...)
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

// start reports what only a look at the database tells, until stop is called. Each process reports all of the schema.
func (o *observer) start(l *Ledger) (stop func(), err error) {
	m := l.cfg.MeterProvider.Meter(scope)
	doubts, err := m.Int64ObservableGauge("millrace.effect.in_doubt", metric.WithUnit("{effect}"),
		metric.WithDescription("Effects in doubt, of all processes that use the schema."))
	oldest, oerr := m.Float64ObservableGauge("millrace.effect.in_doubt.oldest.age", metric.WithUnit("s"),
		metric.WithDescription("Age of the oldest doubt; 0 when there is none."))
	if err := errors.Join(err, oerr); err != nil {
		return nil, err
	}
	query := pgschema.Query(files, "observe", l.cfg.Schema)
	registration, err := m.RegisterCallback(func(ctx context.Context, to metric.Observer) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if time.Since(o.asked) >= observeEvery { // several readers may collect
			ctx, cancel := context.WithTimeout(ctx, lookTimeout)
			defer cancel()
			if err := l.pool.QueryRow(ctx, query).Scan(&o.doubts, &o.oldest); err != nil {
				return err
			}
			o.asked = time.Now()
		}
		to.ObserveInt64(doubts, o.doubts)
		to.ObserveFloat64(oldest, o.oldest)
		return nil
	}, doubts, oldest)
	if err != nil {
		return nil, err
	}
	return func() { _ = registration.Unregister() }, nil // it has no reason to fail
}
