// Package life is how a service runs: it starts the parts in order, and stops them in reverse.
package life

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/framework/internal/web"
	"github.com/millrace-go/millrace/transport"
)

// Service is what runs. Every field is set.
type Service struct {
	Subscribe func() error // hands the handlers to Router
	// Background returns what works beside handlers and requests: what they need until they are done, and what ends at once. It is called
	// when the handlers are subscribed.
	Background func() (lasting, ending []func(context.Context) error, err error)
	Transport  transport.Transport
	Router     *message.Router
	Server     *http.Server
	Listener   net.Listener
	Handler    http.Handler
	Context    func(context.Context) context.Context // of requests

	Linger          *time.Duration // nil: the default
	ShutdownTimeout time.Duration

	Running  chan struct{} // Run closes it when the handlers are subscribed
	Stopping chan struct{} // Run closes it when the service takes nothing more

	Log        *slog.Logger
	Attributes []any // that are logged when the service runs
}

// Run starts the parts, and stops them in reverse when ctx ends.
func (s *Service) Run(ctx context.Context) error {
	var refused error
	subscribed := make(chan struct{})
	go func() {
		defer close(subscribed)
		refused = s.Subscribe()
	}()
	select {
	case <-subscribed:
		if refused != nil {
			return refused
		}
	case <-ctx.Done(): // Watermill gives subscribing no context, and a broker that is away may take minutes
		_ = s.Transport.Close() // release tells its error
		<-subscribed            // which that has ended
		return nil
	}
	lasting, ending, err := s.Background()
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

	s.Server.BaseContext = func(net.Listener) context.Context { return s.Context(keeping) }
	select {
	case <-s.Router.Running():
	case <-routed:
	case <-over.Done():
	}
	if over.Err() != nil && !s.Router.IsRunning() { // it subscribes, for as long as the broker may be away, and cannot be closed yet
		close(s.Stopping)
		stop()
		_ = s.Transport.Close() // release tells its error
		var unfinished error
		select {
		case <-routed:
		case <-s.Router.Running(): // after all, and without handlers nothing else would end it
			unfinished = s.closeRouter()
		}
		return errors.Join(parts.Wait(), unfinished)
	}
	if over.Err() == nil && s.Router.IsRunning() {
		parts.Go(func() error {
			if err := web.Serve(s.Server, s.Listener, s.parting(s.Handler)); err != nil {
				return fmt.Errorf("serve HTTP: %w", err)
			}
			return nil
		})
		close(s.Running)
		s.Log.InfoContext(ctx, "service runs", s.Attributes...)
	}
	<-over.Done()
	close(s.Stopping)
	began := time.Now()
	err = s.drain(ctx)
	stop()
	err = errors.Join(parts.Wait(), err)
	s.Log.InfoContext(ctx, "service has stopped", "took", time.Since(began))
	return err
}

// runRouter runs the router until it is closed.
func (s *Service) runRouter(ctx context.Context) error {
	err := s.Router.Run(ctx)
	select {
	case <-s.Stopping: // it complains at most that its subscribers are closed
		return nil
	default:
		return cmp.Or(err, errors.New("the router has stopped by itself: its subscribers have ended"))
	}
}

// closeRouter waits for the handlers of events.
func (s *Service) closeRouter() error {
	if err := s.Router.Close(); err != nil {
		return fmt.Errorf("handlers of events have not ended within Config.ShutdownTimeout, %s: %w", s.ShutdownTimeout, err)
	}
	return nil
}

// drain takes nothing more and waits for what is in hand. ctx has ended, or a part has failed.
func (s *Service) drain(ctx context.Context) error {
	if !s.Router.IsRunning() { // what it has begun ends with the transport
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
		case <-s.Running:
			<-time.After(linger(ctx, s.Linger)) // a second signal does not wait
		default: // nobody is answered
		}
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.ShutdownTimeout)
		defer cancel()
		if err := s.Server.Shutdown(patience); err != nil {
			requests = errors.Join(fmt.Errorf("requests have not ended within Config.ShutdownTimeout, %s: %w", s.ShutdownTimeout, err), s.Server.Close())
		}
		return nil
	})
	_ = both.Wait()
	return errors.Join(messages, requests)
}

// parting has each answer of a service that stops end its connection, so that no client sends a request on one that is closed.
func (s *Service) parting(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.Stopping:
			w.Header().Set("Connection", "close")
		default:
		}
		h.ServeHTTP(w, r)
	})
}
