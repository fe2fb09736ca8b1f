package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

// The record of an event lies in the day that its ID tells (Key.Record). Where it cannot, because that day was dropped or is
// not made yet, nobody knows whether the event was processed; whoever runs it all the same leaves its record among the
// hashes (Key.Hash). Both are looked at, so a redelivery finds either.

type proofKey struct{}

// WithProof vouches for the event: it is run though it is too old, or from the future, to be proved new.
func WithProof(ctx context.Context) context.Context { return context.WithValue(ctx, proofKey{}, true) }

// Proven reports whether somebody vouches for the event.
func Proven(ctx context.Context) bool { return ctx.Value(proofKey{}) != nil }

const (
	// IdleSlack is how much longer than the handler's deadline the server waits before it ends an idle transaction.
	IdleSlack = 5 * time.Second
	// maxIdle is how long it waits where there is no deadline.
	maxIdle = 10 * time.Minute
)

// errOld means that the event is from before the consumer's floor.
var errOld = errors.New("the event's day may have been dropped")

// errIsolation means that a transaction without BEGIN is not read committed by default.
var errIsolation = errors.New("the role's default_transaction_isolation is not read committed")

// refusal is the error for a reason of the claim statement's.
func refusal(reason string) error {
	switch reason {
	case "contended":
		return ErrContended
	case "old":
		return errOld
	case "completed": // or kept in claim_failed: from there Millrace redelivers it
		return ErrCompleted
	case "blocked":
		return ErrBlocked
	case "stale":
		return ErrStale
	case "isolation":
		return errIsolation
	}
	return fmt.Errorf("the claim is refused for an unknown reason, %q: is this program older than the schema?", reason)
}

// claimArgs are those of the claim statement. If it fails, a refusal is an error of the server's.
func claimArgs(ctx context.Context, schema string, key Key, consumer int16, hashed, fails bool) []any {
	idle := maxIdle
	if deadline, ok := ctx.Deadline(); ok {
		idle = time.Until(deadline) + IdleSlack
	}
	var minted *time.Time
	record := key.Record()
	if t, ok := inbox.Time(record); ok && !hashed {
		minted = &t
	}
	return []any{
		key.Lock(schema), record, consumer, strconv.FormatInt(idle.Milliseconds(), 10), key.Consumer,
		minted, key.Hash(), key.Order, hashed, fails,
	}
}

// errNoDay means that the event's day is not there.
var errNoDay = errors.New("no day for the event's record")

// Do claims the event where its record belongs, and calls fn in the claim's transaction. It returns one of the package's errors,
// without calling fn, if the event is not to be handled.
func (c *Claims) Do(ctx context.Context, key Key, fn func(ctx context.Context) error) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	ran := false
	run := func(ctx context.Context) error {
		ran = true
		return fn(ctx)
	}
	err := c.try(ctx, key, nil, run)
	if errors.Is(err, ErrStale) && !ran {
		c.Forget(key.Consumer)
		err = c.try(ctx, key, nil, run)
	}
	if errors.Is(err, errNoDay) && !ran {
		err = c.heal(ctx, key, run)
	}
	if errors.Is(err, errOld) && !ran {
		err = c.try(ctx, key, ErrTooOld, run)
	}
	return err
}

// usable reports why nothing can be claimed with ctx.
func (c *Claims) usable(ctx context.Context) error {
	_, ok := pgtx.From(ctx)
	if _, std := pgtx.SQLFrom(ctx); ok || std {
		return errors.New("the context carries a transaction already: a claim begins its own; is the middleware there twice?")
	}
	return nil
}

// heal makes the days that are missing and claims the event again.
func (c *Claims) heal(ctx context.Context, key Key, fn func(ctx context.Context) error) error {
	c.healing.Lock() // at midnight all of the process's claims come at once
	made := c.ask(ctx, c.sql.days, nil, new(any))
	c.healing.Unlock()
	if err := c.try(ctx, key, nil, fn); !errors.Is(err, errNoDay) {
		return err
	}
	minted, _ := key.Minted()
	var future bool
	if err := c.ask(ctx, c.sql.future, []any{minted}, &future); err != nil {
		return fmt.Errorf("ask for the server's time: %w", err)
	}
	if made != nil || !future {
		return errors.Join(fmt.Errorf("%w, of %s: run \"millrace retention run\" as the tables' owner", errNoDay, minted.UTC().Format(time.DateOnly)), made)
	}
	return c.try(ctx, key, ErrClock, fn)
}
