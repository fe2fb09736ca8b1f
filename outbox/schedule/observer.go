package schedule

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/internal/gauge"
	"github.com/millrace-go/millrace/internal/service"
)

const scope = "github.com/millrace-go/millrace/outbox/schedule"

// observe reports by how much the schedules of this process are overdue, until stop is called.
func (s *Scheduler) observe() (stop func(), err error) {
	gauges := gauge.Of(s.cfg.MeterProvider.Meter(scope))
	overdue := gauges.Int("millrace.schedule.overdue", "{schedule}", "Schedules of this program whose next time passed more than a minute ago.")
	age := gauges.Float("millrace.schedule.overdue.age", "s", "For how long the next time of a schedule has passed; 0 when it has not.")
	stored := gauge.Ask(func(ctx context.Context) ([]Entry, error) { return List(ctx, s.pool, s.cfg.Schema) })
	return gauges.Report(func(ctx context.Context, to metric.Observer) error {
		all, err := stored.Answer(ctx)
		if err != nil {
			return err
		}
		late := int64(0)
		for _, found := range all {
			if found.Service != s.cfg.Service || !slices.ContainsFunc(s.entries, func(e *entry) bool { return e.Name == found.Name }) {
				continue // it is another program's, or was removed from this one
			}
			if found.Overdue() > grace {
				late++
			}
			to.ObserveFloat64(age, found.Overdue().Seconds(), metric.WithAttributes(attribute.String("millrace.schedule", service.Scoped(found.Service, found.Name))))
		}
		to.ObserveInt64(overdue, late)
		return nil
	})
}
