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

// attempt is the result of one try to handle a message under its claim.
type attempt struct {
	ran     bool      // the handler was called, so err is its own, even if err is ErrCompleted from a claim on another event
	err     error     // nil: the claim is completed
	began   time.Time // set by Claim.run
	skipped bool      // middleware called Skip
}

// modes are the optional ways in which claims share commits. In the zero value none is on.
type modes struct {
	batches *batch.Batches // nil unless Config.Group is set
	flusher flusher        // nil unless Config.Deferred is set
}

// flusher writes to disk the claims that were committed without waiting for the disk.
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

// attempt claims the event and calls fn. If the result is settled, the event's record is on disk.
func (c *Claim) attempt(ctx context.Context, key Key, fn func(ctx context.Context) error) batch.Result {
	do := c.single
	if c.modes.batches != nil {
		do = c.modes.batches.Do
	}
	r := do(ctx, store.Key(key), fn)
	if c.modes.flusher == nil || !r.Settled() {
		return r
	}
	if !c.cfg.Ordered && !grouped(ctx) { // a crash of the server may undo this event, and the next one of its key must not have run before it
		transport.DeliveryFrom(ctx).Handled()
	}
	if err := c.modes.flusher.Durable(context.WithoutCancel(ctx), store.Key(key)); err != nil {
		return batch.Result{Err: fmt.Errorf("make the claim durable: %w", err)} // not a failure of the event itself
	}
	return r
}

// single claims the event in a transaction of its own. If this Claim is handling the event already, single returns
// ErrContended without asking PostgreSQL, which saves a connection and two round trips.
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

// Ensure claims the event now. With Config.Lazy the claim otherwise waits for the handler's first statement. If Ensure
// returns an error, the event must not be handled: return that error from the handler. Call Ensure with the handler's context
// before any effect that is not part of the transaction and must not happen for a duplicate. It does nothing if the event is
// claimed already, or if no claim runs.
func Ensure(ctx context.Context) error {
	return pgunit.Begin(ctx)
}

// Permanent marks a handler's error as one that no retry can fix. The event becomes a dead letter at once. It returns nil
// for nil.
func Permanent(err error) error {
	return fault.Permanent(err)
}

// IsPermanent reports whether err, or an error that it wraps, was marked with Permanent.
func IsPermanent(err error) bool {
	return fault.IsPermanent(err)
}

// PanicError is the error of a handler that panicked.
type PanicError struct {
	Value any // the value that the handler panicked with
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

func panicError(value any, stack []byte) error { return &PanicError{Value: value, Stack: stack} }
