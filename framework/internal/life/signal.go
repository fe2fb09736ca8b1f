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

// errTerminated is why the context of Run ends after SIGTERM.
var errTerminated = errors.New("SIGTERM")

// defaultLinger is HTTP.Linger after SIGTERM, which orchestrators send, whose load balancers take some seconds to notice.
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
		case <-running.Done(): // it has ended by itself
			return
		}
		signal.Stop(signals) // the next one does what it does to any process
		log.Info("service stops; another signal ends it at once")
		cancel(why) // now, so that the log says first that the service stops, and then that it has stopped
	}()
	err := run(running)
	cancel(nil)
	<-stopped
	return err
}

// linger is how long a service still takes requests whose context has ended.
func linger(ctx context.Context, configured *time.Duration) time.Duration {
	switch {
	case configured != nil:
		return *configured
	case errors.Is(context.Cause(ctx), errTerminated):
		return defaultLinger
	}
	return 0
}
