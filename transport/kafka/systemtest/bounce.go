package main

import (
	"context"
	"math/rand/v2"
	"time"
)

// How long the copying would take: longer than the bounces do. The copiers are slowed down to that, and told
// to hurry when the bounces are over.
const (
	brokerSpan = 90 * time.Second
	copierSpan = 30 * time.Second
)

// rounds is how often each copier is bounced.
const rounds = 3

func (r *trial) span() time.Duration {
	if r.bounced == brokers {
		return brokerSpan
	}
	return copierSpan
}

// bounceBrokers takes one broker after another down and starts it again. The next is taken when all have what they missed:
// two of three must be there for anything to be acknowledged.
func (r *trial) bounceBrokers(ctx context.Context) error {
	for broker := 1; broker <= len(r.cluster.Brokers()); broker++ {
		if err := r.progress(ctx, r.messages/40); err != nil {
			return err
		}
		if r.clean {
			r.say("SIGTERM broker %d", broker)
			if err := r.cluster.Terminate(ctx, broker); err != nil {
				return err
			}
		} else {
			r.say("SIGKILL broker %d", broker)
			if err := r.cluster.Kill(ctx, broker); err != nil {
				return err
			}
			if err := r.cluster.AwaitFenced(ctx, broker); err != nil {
				return err
			}
		}
		r.say("start   broker %d", broker)
		if err := r.cluster.Start(ctx, broker); err != nil {
			return err
		}
		if err := r.cluster.AwaitInSync(ctx); err != nil {
			return err
		}
		r.say("in sync")
	}
	return nil
}

// bounceCopiers takes each copier down a few times, at any moment of a transaction.
func (r *trial) bounceCopiers(ctx context.Context) error {
	step := r.messages / (rounds*r.copiers + 1)
	for range rounds {
		for i := range r.copiers {
			if err := r.progress(ctx, step/2); err != nil {
				return err
			}
			if err := pause(ctx, time.Duration(rand.Int64N(int64(300*time.Millisecond)))); err != nil {
				return err
			}
			if r.clean {
				r.say("stop and start copier %d", i+1)
			} else {
				r.say("SIGKILL and start copier %d", i+1)
			}
			if err := r.cast.bounce(i, r.clean); err != nil {
				return err
			}
		}
	}
	return nil
}

// progress waits until so many more messages were copied, so that each bounce falls on copiers at work.
func (r *trial) progress(ctx context.Context, more int) error {
	goal := min(r.reader.count()+more, r.messages)
	return r.await(ctx, "the copying goes on", func(context.Context) (bool, error) { return r.reader.count() >= goal, nil })
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
