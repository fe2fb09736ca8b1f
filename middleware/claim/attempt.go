package claim

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/middleware/claim/internal/batch"
	"github.com/millrace-go/millrace/middleware/claim/internal/fault"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/middleware/claim/internal/warm"
	"github.com/millrace-go/millrace/transport"
)

// attempt is what became of a message under its claim.
type attempt struct {
	ran     bool      // the handler was called: what it returned is its own, even ErrCompleted of another claim
	err     error     // nil: the claim is completed
	began   time.Time // set by Claim.run
	skipped bool      // middleware has left the handler out on purpose
}

// modes are the ways in which claims share commits. The zero value has none.
type modes struct {
	batches *batch.Batches // nil unless Config.Group is set
	flusher flusher        // nil unless Config.Deferred is
}

// flusher makes claims durable that are committed without waiting for the disk.
type flusher interface {
	Commit(ctx context.Context) error
	Durable(ctx context.Context, key store.Key) error
}

func (c Config) validateModes(of Store) error {
	if _, ok := of.(*PostgresStore); !ok && (c.Group != 0 || c.Deferred || c.Lazy) {
		return fmt.Errorf("Config.Lazy is %t, Config.Group is %d and Config.Deferred is %t with a %T: want the store of claim.NewPostgresStore itself, with nothing in front of it",
			c.Lazy, c.Group, c.Deferred, of)
	}
	if _, ok := of.(*PostgresStore); !ok && c.limits() {
		return fmt.Errorf("Config.MaxPerKey, or that of a handler, is set with a %T: want the store of claim.NewPostgresStore itself, with nothing in front of it", of)
	}
	return nil
}

func (c *Claim) newModes() (m modes) {
	if c.cfg.Group > 0 {
		m.batches = batch.New(batch.Config{
			Store: c.postgres, Max: c.cfg.Group, Async: c.cfg.Deferred, Timeout: c.cfg.timeout, Logger: c.cfg.Logger, Alone: c.single,
		})
	}
	if c.cfg.Deferred {
		m.flusher = store.NewFlusher(c.postgres, c.cfg.longest())
	}
	return m
}

// attempt claims the event and calls fn. When the claim is completed or was before, it is durable.
func (c *Claim) attempt(ctx context.Context, key Key, fn func(ctx context.Context) error) batch.Result {
	do := c.single
	if c.modes.batches != nil {
		do = c.modes.batches.Do
	}
	r := do(ctx, store.Key(key), fn)
	if c.modes.flusher == nil || !r.Settled() {
		return r
	}
	transport.DeliveryFrom(ctx).Handled()
	if err := c.modes.flusher.Durable(context.WithoutCancel(ctx), store.Key(key)); err != nil {
		return batch.Result{Err: fmt.Errorf("make the claim durable: %w", err)} // which says nothing against the event
	}
	return r
}

// single claims the event in a transaction of its own. PostgreSQL is not asked for one that this Claim has in hand: it
// would refuse, at the price of a connection and two round trips.
func (c *Claim) single(ctx context.Context, key store.Key, fn func(ctx context.Context) error) (r batch.Result) {
	if _, ok := c.store.(*PostgresStore); ok {
		hand := [2]string{key.Consumer, key.EventID}
		if _, taken := c.inHand.LoadOrStore(hand, nil); taken {
			return batch.Result{Err: ErrContended}
		}
		defer c.inHand.Delete(hand)
	}
	handled := func(ctx context.Context) error {
		r.Ran = true
		if err := fn(ctx); err != nil || c.modes.flusher == nil {
			return err
		}
		return c.modes.flusher.Commit(ctx)
	}
	r.Err = warm.Do(func() (err error) {
		if !c.cfg.Lazy {
			return c.store.Do(ctx, Key(key), handled)
		}
		r.Ran, err = c.postgres.Lazily(ctx, key, handled)
		return err
	})
	return r
}

// Ensure claims the event now, where the claim would otherwise wait for the handler's first statement (Config.Lazy). An error
// means that the event must not be handled: return it. Call it with the handler's context before anything that must not
// happen for a duplicate and that is no part of the transaction. It does nothing when the event is claimed, and without a
// claim.
func Ensure(ctx context.Context) error {
	return pgunit.Begin(ctx)
}

// Permanent marks a handler's error as one that no retry can help against: the event becomes a dead letter at once. It
// returns nil for nil.
func Permanent(err error) error {
	return fault.Permanent(err)
}

// IsPermanent reports whether err, or an error that it wraps, was marked with Permanent.
func IsPermanent(err error) bool {
	return fault.IsPermanent(err)
}

// PanicError is the error of a handler that panicked.
type PanicError struct {
	Value any // what it panicked with
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

func panicError(value any, stack []byte) error { return &PanicError{Value: value, Stack: stack} }
