package claim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/transport"
)

// attempt is what became of a message under its claim.
type attempt struct {
	ran   bool      // the handler was called: what it returned is its own, even ErrCompleted of another claim
	err   error     // nil: the claim is completed
	began time.Time // set by Claim.run

	skipped bool // middleware has left the handler out on purpose
}

// settled reports whether the event's record is there: it was completed now or before.
func (a attempt) settled() bool {
	return a.ran && a.err == nil || !a.ran && errors.Is(a.err, ErrCompleted)
}

// modes are the ways in which claims share commits. The zero value has none.
type modes struct {
	group     *groupStore // nil unless Config.Group is set
	gatherers sync.Map    // consumer → *gatherer
	leaving   sync.Map    // consumer → *leaving
	flusher   flusher     // nil unless Config.Deferred is
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

func newModes(of Store, cfg Config) *modes {
	m := &modes{}
	s := postgresOf(of)
	if cfg.Group > 0 {
		m.group = newGroupStore(s, cfg)
	}
	if cfg.Deferred {
		m.flusher = store.NewFlusher(s, cfg.longest())
	}
	return m
}

// attempt claims the event and calls fn. When the claim is completed or was before, it is durable.
func (c *Claim) attempt(ctx context.Context, key Key, _ *message.Message, fn func(ctx context.Context) error) attempt {
	do := c.single
	if c.modes.group != nil {
		do = c.grouped
	}
	a := do(ctx, key, fn)
	if c.modes.flusher == nil || !a.settled() {
		return a
	}
	transport.DeliveryFrom(ctx).Handled()
	if err := c.modes.flusher.Durable(context.WithoutCancel(ctx), store.Key(key)); err != nil {
		return attempt{err: fmt.Errorf("make the claim durable: %w", err)} // which says nothing against the event
	}
	return a
}

// single claims the event in a transaction of its own. PostgreSQL is not asked for one that this Claim has in hand: it
// would refuse, at the price of a connection and two round trips.
func (c *Claim) single(ctx context.Context, key Key, fn func(ctx context.Context) error) (a attempt) {
	if _, ok := c.store.(*PostgresStore); ok {
		hand := [2]string{key.Consumer, key.EventID}
		if _, taken := c.inHand.LoadOrStore(hand, nil); taken {
			return attempt{err: ErrContended}
		}
		defer c.inHand.Delete(hand)
	}
	handled := func(ctx context.Context) error {
		a.ran = true
		if err := fn(ctx); err != nil || c.modes.flusher == nil {
			return err
		}
		return c.modes.flusher.Commit(ctx)
	}
	a.err = warm(func() (err error) {
		if !c.cfg.Lazy {
			return c.store.Do(ctx, key, handled)
		}
		a.ran, err = c.postgres.Lazily(ctx, store.Key(key), handled)
		return err
	})
	return a
}

// Ensure claims the event now, where the claim would otherwise wait for the handler's first statement (Config.Lazy). An error
// means that the event must not be handled: return it. Call it with the handler's context before anything that must not
// happen for a duplicate and that is no part of the transaction. It does nothing when the event is claimed, and without a
// claim.
func Ensure(ctx context.Context) error {
	return pgunit.Begin(ctx)
}
