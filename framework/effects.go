package framework

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

// Effects configures the ledger of effects.
type Effects struct {
	// Config configures the ledger; the service sets its name and schema.
	effect.Config `without:"Service,Schema"`
}

func (e Effects) of(name string) effect.Config {
	e.Service = name
	return e.Config
}

// Effects returns the ledger of effects outside of the database, such as a call of a provider. The contexts of handlers, of
// requests and of Tx carry it, so effect.Once and effect.Value work in all of them. Elsewhere use effect.With(ctx,
// svc.Effects()). The ledger has a few connections besides the pool (Config.Effects.MaxConns). Run maintains its table and
// reports effects that are in doubt. The ledger is closed with the service.
func (s *Service) Effects() *effect.Ledger { return s.effects }

// newLedger returns the ledger. If it returns a ledger with an error, the caller closes the ledger.
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
		return ledger, nil // its calls return ErrNoPostgres
	}
	if err := ledger.Check(ctx); err != nil {
		return ledger, fmt.Errorf("%w\n(the pool is Config.Postgres.MaxConnections (postgres.max_connections), the ledger's Config.Effects.MaxConns (effects.max_conns))", err)
	}
	return ledger, nil
}

// IdempotencyKeys configures the idempotency keys of requests.
type IdempotencyKeys struct {
	// Config configures all Keys of the service. The service sets the name and the schema, and Service.Keys the scope.
	idempotencykey.Config `without:"Service,Schema"`
}

func (k IdempotencyKeys) of(name string, scope func(*http.Request) (string, error)) idempotencykey.Config {
	k.Service, k.Scope = name, scope
	return k.Config
}

// Keys returns middleware for routes whose clients send an Idempotency-Key. However often a client repeats a request, it is
// executed once. The scope tells callers apart: see idempotencykey.Config.Scope.
//
//	keys, err := svc.Keys(account)
//	svc.HTTP().Handle("POST /payments", keys.Middleware(pay))
//
// The handler gets the transaction of its request from pgtx.From, and Publish publishes in it. Config.IdempotencyKeys has the
// settings; for a route that needs others, call idempotencykey.New. Run maintains the table. Call Keys before Run, once for each
// scope.
func (s *Service) Keys(scope func(*http.Request) (string, error)) (*idempotencykey.Keys, error) {
	if s.bare {
		return nil, fmt.Errorf("idempotency keys: %w", ErrNoPostgres)
	}
	cfg := s.cfg.IdempotencyKeys.of(s.cfg.Service, scope)
	cfg.Schema = s.cfg.Postgres.Schema
	cfg.Logger = cmp.Or(cfg.Logger, s.log)
	cfg.MeterProvider = cmp.Or(cfg.MeterProvider, s.telemetry.Meter)
	keys, err := idempotencykey.New(s.pool, cfg)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stage != made {
		return nil, errors.New("idempotency keys: the service runs already, or has ended: call Keys before Run")
	}
	s.keys = cmp.Or(s.keys, keys)
	return keys, nil
}
