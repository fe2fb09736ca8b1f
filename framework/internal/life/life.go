// Package life runs a service: it starts the parts in order, and stops them in reverse.
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

// Service is a service to run. Every field is set.
type Service struct {
	Subscribe func() error // adds the handlers to Router
	// Background returns the work besides handlers and requests: lasting runs until the handlers are done, which need it; ending
	// stops when ctx ends. It is called when the handlers are subscribed.
	Background func() (lasting, ending []func(context.Context) error, err error)
	Transport  transport.Transport
	Router     *message.Router
	Server     *http.Server
	Listener   net.Listener
	Handler    http.Handler
	Context    func(context.Context) context.Context // makes the context of requests

	Linger *time.Duration // nil: the default
	Grace  time.Duration  // that handlers and requests have to end; Router's CloseTimeout, too

	Running  chan struct{} // Run closes it when the handlers are subscribed
	Stopping chan struct{} // Run closes it when the service takes no more messages and requests

	Log        *slog.Logger
	Attributes []any // logged when the service runs
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
	case <-ctx.Done(): // Watermill's Subscribe takes no context, and an unreachable broker may block it for minutes
		_ = s.Transport.Close() // the service closes it again later, and returns the error then
		<-subscribed            // closing the transport ends Subscribe
		return nil
	}
	lasting, ending, err := s.Background()
	if err != nil {
		return err
	}
	// Handlers finish after ctx has ended, and need this work until then.
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	parts, over := errgroup.WithContext(ctx) // over ends with ctx, or when a part fails
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
	if over.Err() != nil && !s.Router.IsRunning() { // the router still subscribes, which may block, and cannot be closed yet
		close(s.Stopping)
		stop()
		_ = s.Transport.Close() // the service closes it again later, and returns the error then
		var unfinished error
		select {
		case <-routed:
		case <-s.Router.Running(): // it did subscribe: without handlers only closing it ends it
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
	case <-s.Stopping: // the only error is then that its subscribers are closed
		return nil
	default:
		return cmp.Or(err, errors.New("the router has stopped by itself: its subscribers have ended"))
	}
}

// closeRouter closes the router, and waits for the handlers of events.
func (s *Service) closeRouter() error {
	if err := s.Router.Close(); err != nil {
		return fmt.Errorf("handlers of events have not ended within %s (Config.ShutdownTimeout, or the longest timeout of a handler): %w", s.Grace, err)
	}
	return nil
}

// drain stops taking messages and requests, and waits for those in flight. ctx has ended, or a part has failed.
func (s *Service) drain(ctx context.Context) error {
	if !s.Router.IsRunning() { // nothing is in flight; closing the transport ends the subscriptions
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
			<-time.After(linger(ctx, s.Linger)) // a second signal ends the process instead
		default: // the HTTP server has not started
		}
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Grace)
		defer cancel()
		if err := s.Server.Shutdown(patience); err != nil {
			requests = errors.Join(fmt.Errorf("requests have not ended within %s (Config.ShutdownTimeout, or the longest timeout of a handler): %w", s.Grace, err), s.Server.Close())
		}
		return nil
	})
	_ = both.Wait()
	return errors.Join(messages, requests)
}

// parting ends the connection after each response of a stopping service, so that no client sends its next request on a closed
// connection.
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
