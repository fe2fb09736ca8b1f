package framework

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/framework/internal/database"
	"github.com/millrace-go/millrace/framework/internal/web"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// ErrEnded is returned by Run of a service that runs already, has run, or was closed: make another one.
var ErrEnded = errors.New("the service has been run or closed before")

// errTerminated is why the context of Run ends after SIGTERM.
var errTerminated = errors.New("SIGTERM")

// defaultLinger is HTTP.Linger after SIGTERM, which orchestrators send, whose load balancers take some seconds to notice.
const defaultLinger = 10 * time.Second

// RunUntilSignal runs the service until ctx ends, or SIGTERM or SIGINT comes, and then stops it as Run does. A second
// signal ends the process at once. That loses nothing: running handlers are rolled back, and their events redelivered.
func (s *Service) RunUntilSignal(ctx context.Context) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	running, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		var why error
		select {
		case received := <-signals:
			if received == syscall.SIGTERM {
				why = errTerminated
			}
		case <-ctx.Done():
		case <-running.Done(): // it has ended by itself
			return
		}
		signal.Stop(signals) // the next one does what it does to any process
		s.log.Info("service stops; another signal ends it at once")
		cancel(why) // now, so that the log says first that the service stops, and then that it has stopped
	}()
	err := s.Run(running)
	cancel(nil)
	<-stopped
	return err
}

// Run runs the service until ctx ends. Then /readyz answers 503, running handlers finish, and running requests finish after
// HTTP.Linger, both within ShutdownTimeout (or Claim.HandlerTimeout, if that is longer). Then the relay ends, the transport
// and the pool are closed, and Run returns nil. It returns an error if the service could not start, for example because a
// topic is missing, if a part failed for good, or if something did not end in time.
func (s *Service) Run(ctx context.Context) error {
	if !s.enter() {
		return ErrEnded
	}
	endAdmin := s.admin.Serve() // until nothing runs any more, so that operators see how the service starts and stops
	err := database.WithGrants(s.run(ctx))
	endAdmin()
	return errors.Join(err, s.release())
}

func (s *Service) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stage != made {
		return false
	}
	s.stage = started
	return true
}

func (s *Service) run(ctx context.Context) error {
	var refused error
	subscribed := make(chan struct{})
	go func() {
		defer close(subscribed)
		refused = s.subscribe()
	}()
	select {
	case <-subscribed:
		if refused != nil {
			return refused
		}
	case <-ctx.Done(): // Watermill gives subscribing no context, and a broker that is away may take minutes
		_ = s.transport.Close() // release tells its error
		<-subscribed            // which that has ended
		return nil
	}
	lasting, ending, err := s.background()
	if err != nil {
		return err
	}
	// What handlers need until they are done lives longer than ctx.
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	parts, over := errgroup.WithContext(ctx) // over ends with ctx, and when a part fails
	for _, run := range lasting {
		parts.Go(func() error { return run(keeping) })
	}
	for _, run := range ending {
		parts.Go(func() error { return run(over) })
	}
	routed := make(chan struct{})
	parts.Go(func() error {
		defer close(routed)
		return s.runRouter(keeping)
	})

	s.server.BaseContext = func(net.Listener) context.Context { return withService(keeping, s) }
	select {
	case <-s.router.Running():
	case <-routed:
	case <-over.Done():
	}
	if over.Err() != nil && !s.router.IsRunning() { // it subscribes, for as long as the broker may be away, and cannot be closed yet
		close(s.stopping)
		stop()
		_ = s.transport.Close() // release tells its error
		var unfinished error
		select {
		case <-routed:
		case <-s.router.Running(): // after all, and without handlers nothing else would end it
			unfinished = s.closeRouter()
		}
		return errors.Join(parts.Wait(), unfinished)
	}
	if over.Err() == nil && s.router.IsRunning() {
		parts.Go(func() error {
			if err := web.Serve(s.server, s.listener, s.parting(s.telemetry.Requests(s.Address(), s.mux.Wrapped(), web.LivePath, web.ReadyPath, web.MetricsPath))); err != nil {
				return fmt.Errorf("serve HTTP: %w", err)
			}
			return nil
		})
		close(s.running)
		s.log.InfoContext(ctx, "service runs", "broker", s.cfg.Broker, "address", s.Address(), "handlers", len(s.handlers))
	}
	<-over.Done()
	close(s.stopping)
	began := time.Now()
	err = s.drain(ctx)
	stop()
	err = errors.Join(parts.Wait(), err)
	s.log.InfoContext(ctx, "service has stopped", "took", time.Since(began))
	return err
}

// runRouter runs the router until it is closed.
func (s *Service) runRouter(ctx context.Context) error {
	err := s.router.Run(ctx)
	select {
	case <-s.stopping: // it complains at most that its subscribers are closed
		return nil
	default:
		return cmp.Or(err, errors.New("the router has stopped by itself: its subscribers have ended"))
	}
}

// background returns what works on the database beside handlers and requests: what they need until they are done, and what ends at once.
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

// forwarding returns what brings committed events to the broker: a relay, and what wakes the relays of other processes,
// which may hold the shards of what is committed here.
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
	publisher, err := transport.PlainPublisher(s.transport) // its messages are part of no consumed one's transaction
	if err != nil {
		return nil, err
	}
	r, err := outbox.NewRelay(s.pool, publisher, s.relayConfig())
	if err != nil {
		return nil, err
	}
	return append(runs, r.Run), nil
}

// closeRouter waits for the handlers of events.
func (s *Service) closeRouter() error {
	if err := s.router.Close(); err != nil {
		return fmt.Errorf("handlers of events have not ended within Config.ShutdownTimeout, %s: %w", s.cfg.ShutdownTimeout, err)
	}
	return nil
}

// drain takes nothing more and waits for what is in hand. ctx has ended, or a part has failed.
func (s *Service) drain(ctx context.Context) error {
	if !s.router.IsRunning() { // what it has begun ends with the transport
		return nil
	}
	var messages, requests error
	var both errgroup.Group
	both.Go(func() error {
		messages = s.closeRouter()
		return nil
	})
	both.Go(func() error {
		select {
		case <-s.running:
			<-time.After(s.cfg.HTTP.linger(ctx)) // a second signal does not wait
		default: // nobody is answered
		}
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.ShutdownTimeout)
		defer cancel()
		if err := s.server.Shutdown(patience); err != nil {
			requests = errors.Join(fmt.Errorf("requests have not ended within Config.ShutdownTimeout, %s: %w", s.cfg.ShutdownTimeout, err), s.server.Close())
		}
		return nil
	})
	_ = both.Wait()
	return errors.Join(messages, requests)
}

// linger is how long a service still takes requests whose context has ended.
func (c HTTP) linger(ctx context.Context) time.Duration {
	switch {
	case c.Linger != nil:
		return *c.Linger
	case errors.Is(context.Cause(ctx), errTerminated):
		return defaultLinger
	}
	return 0
}

// parting has each answer of a service that stops end its connection, so that no client sends a request on one that is closed.
func (s *Service) parting(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.stopping:
			w.Header().Set("Connection", "close")
		default:
		}
		h.ServeHTTP(w, r)
	})
}

// Close closes a service that Run was not called on. It does nothing to a service that runs, which ends with Run's context,
// nor when it is called again.
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

// release closes what the parts ran on.
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
