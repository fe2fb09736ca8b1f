package fleet

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const scope = "github.com/millrace-go/millrace/outbox/fleet"

// observe reports what the fleet does about its databases, until stop is called.
func (f *Fleet) observe() (stop func(), err error) {
	m := f.cfg.Relay.MeterProvider.Meter(scope)
	var errs [5]error
	gauge := func(i int, name, unit, description string) (g metric.Int64ObservableGauge) {
		g, errs[i] = m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
		return g
	}
	connections := gauge(0, "millrace.fleet.connections", "{connection}", "Connections to a server that its budget counts, by server.")
	states := gauge(1, "millrace.fleet.databases", "{database}", "Databases of the fleet, by server and state.")
	failures := gauge(2, "millrace.fleet.failures", "{failure}", "Failures in a row of a database to answer, or of its relay to start; 0 when both succeed.")
	dead := gauge(3, "millrace.fleet.dead", "{event}", "Dead events of a database when it was last asked, up to 10,000.")
	waits, err := m.Float64ObservableGauge("millrace.fleet.wait", metric.WithUnit("s"),
		metric.WithDescription("For how long a database that has work has waited for its turn; 0 when it does not wait."))
	errs[4] = err
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	registration, err := m.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		for _, s := range f.all() {
			server := attribute.String("server.address", s.address)
			s.mu.Lock()
			all, used := s.status, s.used
			s.mu.Unlock()
			to.ObserveInt64(connections, int64(used), metric.WithAttributes(server))
			byState := map[string]int64{}
			for _, d := range all {
				byState[d.State]++
				database, wait := metric.WithAttributes(attribute.String("millrace.database", d.Name)), 0.0
				if d.State == waiting.String() {
					wait = time.Since(d.Since).Seconds()
				}
				to.ObserveInt64(failures, int64(d.Failures), database)
				to.ObserveInt64(dead, d.Dead, database)
				to.ObserveFloat64(waits, wait, database)
			}
			for _, state := range stateNames {
				to.ObserveInt64(states, byState[state], metric.WithAttributes(server, attribute.String("millrace.state", state)))
			}
		}
		return nil
	}, connections, states, failures, dead, waits)
	if err != nil {
		return nil, err
	}
	return func() { _ = registration.Unregister() }, nil // it has no reason to fail
}
