package framework

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/millrace-go/millrace/framework/internal/health"
	"github.com/millrace-go/millrace/framework/internal/telemetry"
	"github.com/millrace-go/millrace/framework/internal/web"
)

// Health configures /readyz, which says whether the service can take requests: 200 or 503, with the reasons as JSON. /healthz
// says only that the process answers. Let an orchestrator restart the process by /healthz alone, because a restart repairs no
// database and no broker.
type Health struct {
	// MaxBacklogAge is the age of an event in the outbox at which the check backlog fails. Default: 5 min.
	MaxBacklogAge time.Duration
	// MaxUnrelayed is how long events of a shard may wait while no relay holds the shard, before the check relays fails. Default: 30
	// s.
	MaxUnrelayed time.Duration
	// Timeout bounds the checks of database and broker. Default: 2 s.
	Timeout time.Duration
	// Require names checks that must pass for the service to be ready, besides postgres and schema: backlog, broker or relays. Other
	// checks are reported only. So by default a service takes requests while the broker is down, and its outbox keeps their events.
	// Default: none.
	Require []string
}

// WithDefaults returns the configuration with every zero field set to its default.
func (h Health) WithDefaults() Health { return Health(health.Config(h).WithDefaults()) }

// Validate reports everything that is wrong with the configuration. It expects one that has its defaults.
func (h Health) Validate() error { return health.Config(h).Validate() }

// Log returns the service's logger. Records that are logged with the context of a handler or of a request have its trace.
func (s *Service) Log() *slog.Logger { return s.log }

// observe starts the service's own metrics, and adds the paths of health and metrics.
func (s *Service) observe() error {
	if !s.bare {
		stop, err := telemetry.ObservePool(s.telemetry.Meter, s.pool)
		if err != nil {
			return fmt.Errorf("observe the pool: %w", err)
		}
		s.telemetry.OnClose(stop)
	}
	if s.cfg.Migration.To != "" {
		stop, err := telemetry.ObserveMigration(s.telemetry.Meter, s.pool, s.cfg.Postgres.Schema, s.cfg.Broker, s.cfg.Migration.To)
		if err != nil {
			return fmt.Errorf("observe the migration: %w", err)
		}
		s.telemetry.OnClose(stop)
	}
	operators := s.mux
	if s.admin == nil {
		s.health.Register(s.mux, health.Reasons)
	} else {
		operators = s.admin.Routes
		s.health.Register(s.mux, health.Terse)
		s.health.Register(operators, health.Causes)
	}
	if s.telemetry.Metrics != nil {
		operators.HandleOwn("GET "+web.MetricsPath, s.telemetry.Metrics)
	}
	return nil
}
