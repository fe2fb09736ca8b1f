package fleet

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/internal/gauge"
)

const scope = "github.com/millrace-go/millrace/outbox/fleet"

// observe reports what the fleet does about its databases, until stop is called.
func (f *Fleet) observe() (stop func(), err error) {
	gauges := gauge.Of(f.cfg.Relay.MeterProvider.Meter(scope))
	connections := gauges.Int("millrace.fleet.connections", "{connection}", "Connections to a server that its budget counts, by server.")
	allowed := gauges.Int("millrace.fleet.connections.max", "{connection}", "Connections that the budget of a server allows, by server.")
	states := gauges.Int("millrace.fleet.databases", "{database}", "Databases of the fleet, by server and state.")
	failures := gauges.Int("millrace.fleet.failures", "{failure}", "Failures in a row of a database to answer, or of its relay to start; 0 when both succeed.")
	dead := gauges.Int("millrace.fleet.dead", "{event}", "Dead events of a database when it was last asked, up to 10,000.")
	waits := gauges.Float("millrace.fleet.wait", "s", "For how long a database that has work has waited for its turn; 0 when it does not wait.")
	return gauges.Report(func(_ context.Context, to metric.Observer) error {
		for _, s := range f.all() {
			server := attribute.String("server.address", s.address)
			s.mu.Lock()
			all, used := s.status, s.used
			s.mu.Unlock()
			to.ObserveInt64(connections, int64(used), metric.WithAttributes(server))
			to.ObserveInt64(allowed, int64(f.cfg.Connections), metric.WithAttributes(server))
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
	})
}
