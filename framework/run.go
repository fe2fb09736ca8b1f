package framework

import (
	"context"
	"errors"
	"net"

	"github.com/millrace-go/millrace/framework/internal/database"
	"github.com/millrace-go/millrace/framework/internal/life"
	"github.com/millrace-go/millrace/framework/internal/web"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// ErrEnded is returned by Run if the service runs already, has run, or was closed. Make a new service.
var ErrEnded = errors.New("the service has been run or closed before")

// RunUntilSignal runs the service until ctx ends, or SIGTERM or SIGINT comes, and then stops it as Run does. A second
// signal ends the process at once. That loses nothing: running handlers are rolled back, and their events redelivered.
func (s *Service) RunUntilSignal(ctx context.Context) error {
	return life.UntilSignal(ctx, s.log, s.Run)
}

// Run runs the service until ctx ends. Then /readyz answers 503, running handlers finish, and running requests finish after
// HTTP.Linger, both within ShutdownTimeout (or the longest timeout of a handler, if that is longer). Then the relay ends, the transport
// and the pool are closed, and Run returns nil. It returns an error if the service could not start, for example because a
// topic is missing, if a part failed for good, or if something did not end in time.
func (s *Service) Run(ctx context.Context) error {
	if !s.enter(started) {
		return ErrEnded
	}
	endAdmin := s.admin.Serve() // it ends last, so that operators see how the service starts and stops
	err := database.WithGrants(s.life().Run(ctx))
	endAdmin()
	return errors.Join(err, s.release())
}

func (s *Service) life() *life.Service {
	return &life.Service{
		Subscribe: s.subscribe, Background: s.background, Transport: s.transport, Router: s.router, Server: s.server, Listener: s.listener,
		Handler: s.telemetry.Requests(s.Address(), s.mux.Wrapped(), web.LivePath, web.ReadyPath, web.MetricsPath),
		Context: func(ctx context.Context) context.Context { return withService(ctx, s) },
		Linger:  s.cfg.HTTP.Linger, Grace: s.cfg.grace(), Running: s.running, Stopping: s.stopping,
		Log: s.log, Attributes: []any{"broker", s.cfg.Broker, "address", s.Address(), "handlers", len(s.handlers)},
	}
}

func (s *Service) enter(next stage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stage != made {
		return false
	}
	s.stage = next
	return true
}

// background returns the work besides handlers and requests. lasting runs until the handlers are done, which need it; ending
// stops at once.
func (s *Service) background() (lasting, ending []func(context.Context) error, err error) {
	if s.bare {
		return nil, nil, nil
	}
	lasting, err = s.forwarding()
	if err != nil {
		return nil, nil, err
	}
	lasting = append(lasting, s.claim.Run, s.effects.Run)
	if s.ordered != nil {
		lasting = append(lasting, s.ordered.Run)
	}
	if s.keys != nil {
		lasting = append(lasting, s.keys.Run)
	}
	scheduler, err := s.scheduler()
	if err != nil {
		return nil, nil, err
	}
	expiring, err := s.expiring()
	return lasting, []func(context.Context) error{scheduler.Run, expiring}, err
}

// forwarding returns what forwards committed events to the broker: a relay of this process, and a notifier. The notifier wakes
// relays of other processes, which may hold the shards of events that are committed here.
func (s *Service) forwarding() (runs []func(context.Context) error, err error) {
	schema := s.cfg.Postgres.Schema
	if s.cfg.Outbox.Relay == Apart || s.transport.Features().Persistent {
		n, err := outbox.NewNotifier(s.pool, outbox.NotifierConfig{Schema: schema, Logger: s.log})
		if err != nil {
			return nil, err
		}
		runs = append(runs, n.Run)
	}
	if s.cfg.Outbox.Relay == Apart {
		return runs, nil
	}
	publisher, err := transport.PlainPublisher(s.transport) // the relay's messages belong to no transaction of a consumed message
	if err != nil {
		return nil, err
	}
	r, err := outbox.NewRelay(s.pool, publisher, s.relayConfig())
	if err != nil {
		return nil, err
	}
	return append(runs, r.Run), nil
}

// Close closes a service whose Run was not called. It does nothing if the service runs, because Run closes it, or if it is closed
// already.
func (s *Service) Close() error {
	s.mu.Lock()
	running := s.stage == started
	if !running {
		s.stage = ended
	}
	s.mu.Unlock()
	if running {
		return nil
	}
	return s.release()
}

// release closes the connections, pools and listeners of the service, once.
func (s *Service) release() error {
	s.closing.Do(func() {
		var errs []error
		if s.listener != nil {
			if err := s.listener.Close(); !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
		if s.transport != nil {
			errs = append(errs, s.transport.Close())
		}
		s.admin.Close()
		if s.health != nil {
			s.health.Close()
		}
		if s.effects != nil {
			s.effects.Close()
		}
		if s.pool != nil {
			errs = append(errs, database.Close(s.pool, s.cfg.ShutdownTimeout))
		}
		s.closed = errors.Join(append(errs, s.telemetry.Close())...)
	})
	return s.closed
}
