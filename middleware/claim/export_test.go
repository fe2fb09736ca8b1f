package claim

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/millrace-go/millrace/middleware/claim/internal/crashguard"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/middleware/claim/internal/warm"
)

// Hasten makes the Claim's Run quick for a test.
func Hasten(c *Claim, beat, silent time.Duration) {
	c.guard.Pace.Beat, c.guard.Pace.Silent, c.guard.Pace.Slack, c.guard.Pace.Journal = beat, silent, 100*time.Millisecond, beat
}

// Alone gives the Claims a gate of their own, as in a process of their own: tests that run beside must not wait for each
// other's handlers.
func Alone(claims ...*Claim) {
	g := &crashguard.Gate{}
	for _, c := range claims {
		c.guard.Gate = g
	}
}

// Standing returns whether the Claim's process is registered, and whether it is suspicious.
func Standing(c *Claim) (registered, suspicious bool) {
	return c.guard.Standing()
}

// Record returns what the tables call the event and its consumer.
func Record(ctx context.Context, s *PostgresStore, k Key) (record uuid.UUID, consumer int16) {
	consumer, err := s.db.Consumer(ctx, k.Consumer)
	if err != nil {
		panic(err)
	}
	return store.Key(k).Record().Bytes, consumer
}

// Keep records a failure of the event, as after a handler that failed. It returns "" if another delivery has settled the event.
func Keep(ctx context.Context, s *PostgresStore, k Key) (state string, err error) {
	v, err := s.db.Keep(ctx, store.Event{Key: store.Key(k), Record: store.Key(k).Record()}, false, "oops",
		func(attempts int) store.Verdict {
			return store.Verdict{State: store.StateNacked, Attempts: attempts + 1}
		},
		func(context.Context, store.Verdict) error { return nil })
	return v.State, err
}

// PollEvery makes the Claim's subscribers look at the table more often, for a test.
func PollEvery(c *Claim, d time.Duration) { c.redelivery.Poll = d }

// LeaseFor makes the Claim's subscribers lease events of the table for another time, for a test.
func LeaseFor(c *Claim, d time.Duration) { c.redelivery.Lease = d }

// AdoptAfter makes the Claim's subscribers take events of topics that nobody subscribes to earlier, for a test.
func AdoptAfter(c *Claim, d time.Duration) { c.redelivery.Orphaned = d }

// Gather makes the Claim's next group of the consumer wait until so many messages have come.
func Gather(c *Claim, consumer string, n int) { c.modes.batches.Expect(consumer, n) }

// Gathered returns how many messages wait for others.
func Gathered(c *Claim, consumer string) int { return c.modes.batches.Waiting(consumer) }

// WithoutFlush makes the Claim's deferred acks wait for nothing.
func WithoutFlush(c *Claim) { c.modes.flusher = hasty{c.modes.flusher} }

type hasty struct{ flusher }

func (hasty) Durable(context.Context, store.Key) error { return nil }

// AsStore makes a store of the Claim, for the suite that stores run. A handler ensures its claim first. In a group a handler has a
// context of its own and must not panic, because the middleware sees to both: here the store does.
func AsStore(c *Claim) Store { return claimStore{c} }

type claimStore struct{ claim *Claim }

func (s claimStore) Do(ctx context.Context, key Key, fn func(ctx context.Context) error) error {
	if s.claim.modes.batches != nil {
		return s.doGrouped(ctx, key, fn)
	}
	return s.claim.attempt(ctx, key, func(ctx context.Context) error {
		if err := Ensure(ctx); err != nil {
			return err
		}
		return fn(ctx)
	}).Err
}

func (s claimStore) doGrouped(ctx context.Context, key Key, fn func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var panicked any
	a := s.claim.attempt(ctx, key, func(handlers context.Context) (err error) {
		handlers, cancel := context.WithCancelCause(handlers)
		defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
		defer func() {
			if panicked = recover(); panicked != nil {
				err = warm.ErrExited
			}
		}()
		return fn(handlers)
	})
	if panicked != nil {
		panic(panicked)
	}
	return a.Err
}

func (s claimStore) Stage(ctx context.Context, topic string, msgs ...*message.Message) error {
	return s.claim.store.Stage(ctx, topic, msgs...)
}
