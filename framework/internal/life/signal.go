package life

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// errTerminated is the cause of Run's context after SIGTERM.
var errTerminated = errors.New("SIGTERM")

// defaultLinger is the default of HTTP.Linger after SIGTERM. Orchestrators send SIGTERM, and their load balancers notice it some
// seconds later.
const defaultLinger = 10 * time.Second

// UntilSignal runs run until ctx ends, or SIGTERM or SIGINT comes. A second signal ends the process at once.
func UntilSignal(ctx context.Context, log *slog.Logger, run func(context.Context) error) error {
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
		case <-running.Done(): // run has returned by itself
			return
		}
		signal.Stop(signals) // restores the default: the next signal ends the process
		log.Info("service stops; another signal ends it at once")
		cancel(why) // after the log line, so that it precedes those of the stopping service
	}()
	err := run(running)
	cancel(nil)
	<-stopped
	return err
}

// linger returns how long a service still takes requests after its context has ended.
func linger(ctx context.Context, configured *time.Duration) time.Duration {
	switch {
	case configured != nil:
		return *configured
	case errors.Is(context.Cause(ctx), errTerminated):
		return defaultLinger
	}
	return 0
}
