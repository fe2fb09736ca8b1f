package framework

import (
	"fmt"
	"log/slog"

	"github.com/millrace-go/millrace/framework/internal/health"
	"github.com/millrace-go/millrace/framework/internal/telemetry"
	"github.com/millrace-go/millrace/framework/internal/web"
)

// Log is the service's logger. What is logged with the context of a handler or of a request has its trace.
func (s *Service) Log() *slog.Logger { return s.log }

// observe begins to report what is the service's own, and adds the paths that tell of it.
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
