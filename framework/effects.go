package framework

import (
	"cmp"
	"context"
	"fmt"

	"github.com/millrace-go/millrace/middleware/effect"
)

// Effects configures the ledger of effects.
type Effects struct {
	// Config is the ledger's; its name and schema are the service's.
	effect.Config `without:"Service,Schema"`
}

func (e Effects) of(name string) effect.Config {
	e.Service = name
	return e.Config
}

// Effects is the ledger of effects outside of the database, such as a call of a provider. The contexts of handlers, of
// requests and of Tx carry it, so effect.Once and effect.Value work in all of them; elsewhere use effect.With(ctx,
// svc.Effects()). It has a few connections besides the pool (Config.Effects.MaxConns). Run keeps its table and reports what
// is in doubt. It is closed with the service.
func (s *Service) Effects() *effect.Ledger { return s.effects }

// newLedger returns a ledger that can work, or one to close and why it cannot.
func (s *Service) newLedger(ctx context.Context) (*effect.Ledger, error) {
	cfg := s.cfg.Effects.of(s.cfg.Service)
	cfg.Schema = s.cfg.Postgres.Schema
	cfg.Logger = cmp.Or(cfg.Logger, s.log)
	cfg.MeterProvider = cmp.Or(cfg.MeterProvider, s.telemetry.Meter)
	ledger, err := effect.New(s.pool, cfg)
	if err != nil {
		return nil, fmt.Errorf("make the ledger of effects: %w", err)
	}
	if s.bare {
		return ledger, nil // whose calls are refused
	}
	if err := ledger.Check(ctx); err != nil {
		return ledger, fmt.Errorf("%w\n(the pool is Config.Postgres.MaxConnections (postgres.max_connections), the ledger's Config.Effects.MaxConns (effects.max_conns))", err)
	}
	return ledger, nil
}
