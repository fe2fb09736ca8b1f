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

// The record of an event belongs to the day of its ID (Key.Record). If that day was dropped or does not exist yet, nobody knows
// whether the event was processed. If the event is run nevertheless, its record goes to the hashes (Key.Hash). A claim checks both
// places, so a redelivery finds the record.

type proofKey struct{}

// WithProof vouches for the event: it is run even if it is too old, or from the future, so that nobody can prove that it is new.
func WithProof(ctx context.Context) context.Context { return context.WithValue(ctx, proofKey{}, true) }

// Proven reports whether the context vouches for the event.
func Proven(ctx context.Context) bool { return ctx.Value(proofKey{}) != nil }

const (
	// IdleSlack is the time after the handler's deadline at which the server ends an idle transaction.
	IdleSlack = 5 * time.Second
	// maxIdle replaces that if there is no deadline.
	maxIdle = 10 * time.Minute
)

// errOld means that the event is older than the consumer's retention watermark.
var errOld = errors.New("the event's day may have been dropped")

// errIsolation means that the role's default isolation level is not read committed, so a transaction needs BEGIN.
var errIsolation = errors.New("the role's default_transaction_isolation is not read committed")

// refusal returns the error for a reason of the claim statement.
func refusal(reason string) error {
	switch reason {
	case "contended":
		return ErrContended
	case "old":
		return errOld
	case "completed": // or kept in claim_failed, which retries it
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

// claimArgs returns the arguments of the claim statement. With fails, the server raises an error for a refusal.
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

// errNoDay means that the event's day does not exist.
var errNoDay = errors.New("no day for the event's record")

// Do claims the event in the place where its record belongs, and calls fn in the claim's transaction. If the event is not to be
// handled, Do returns one of the package's errors without calling fn.
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

// usable returns an error if nothing can be claimed with ctx.
func (c *Claims) usable(ctx context.Context) error {
	_, ok := pgtx.From(ctx)
	if _, std := pgtx.SQLFrom(ctx); ok || std {
		return errors.New("the context carries a transaction already: a claim begins its own; is the middleware there twice?")
	}
	return nil
}

// heal creates the missing days and claims the event again.
func (c *Claims) heal(ctx context.Context, key Key, fn func(ctx context.Context) error) error {
	c.healing.Lock() // at midnight, all claims of the process come at once
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
