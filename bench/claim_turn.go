package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/bench/internal/wait"
)

// settleTimeout ends a run in which events are neither acked nor nacked.
const settleTimeout = time.Minute

// consumer is a contestant of claims: a handler under a middleware, in a router.
type consumer struct {
	name, note string
	flow
	guard   func() (message.HandlerMiddleware, error) // called for each run
	handler message.NoPublishHandlerFunc
	record  string // the table that has a row for each event; "": none
	nacks   bool   // are part of it; otherwise the first one ends the run
}

// consumed is what a run of a consumer did.
type consumed struct {
	acked int64   // events, in all
	rate  float64 // of events in a second, between the warm-up and the end
}

// consume runs the consumer in a router until each event is acked: for that long after the warm-up, or until there are no
// more of them where the source has a number.
func (c consumer) consume(ctx context.Context, warmUp, lasts time.Duration) (done consumed, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	guard, err := c.guard()
	if err != nil {
		return done, err
	}
	src := newSource(c.flow)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: settleTimeout}, watermill.NopLogger{})
	if err != nil {
		return done, err
	}
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			out, err := h(msg)
			if err != nil && !c.nacks {
				cancel(err)
			}
			return out, err
		}
	}, guard)
	router.AddConsumerHandler(handlerName, topic, src, c.handler)

	var running sync.WaitGroup
	var ended error
	running.Go(func() { ended = router.Run(ctx) })
	<-router.Running()
	if lasts > 0 {
		done.rate = src.sample(ctx, warmUp, lasts)
		src.stop()
	}
	if err = src.settled(ctx); err == nil {
		err = context.Cause(ctx)
	}
	cancel(err)
	err = errors.Join(err, router.Close())
	running.Wait()
	err = errors.Join(err, ended, src.Close())
	if n := src.nacked.Load(); err == nil && n > 0 && !c.nacks {
		err = fmt.Errorf("%d messages were nacked", n)
	}
	if err != nil {
		return done, fmt.Errorf("%s: %w", c.name, err)
	}
	done.acked = src.acked.Load()
	return done, nil
}

// sample returns how many events a second are acked after the warm-up.
func (s *source) sample(ctx context.Context, warmUp, lasts time.Duration) float64 {
	wait.For(ctx, warmUp)
	before, began := s.acked.Load(), time.Now()
	wait.For(ctx, lasts)
	return float64(s.acked.Load()-before) / time.Since(began).Seconds()
}

// settled waits until all that was delivered is acked.
func (s *source) settled(ctx context.Context) error {
	timeout := time.NewTimer(settleTimeout)
	defer timeout.Stop()
	select {
	case <-s.drained:
		return nil
	case <-timeout.C:
		return fmt.Errorf("%d of %d events were not acked within %v", s.delivered.Load()-s.acked.Load(), s.delivered.Load(), settleTimeout)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
