package claim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/pgtx"
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
	flusher   *flusher    // nil unless Config.Deferred is
}

func (c Config) validateModes(store Store) error {
	if _, ok := store.(*PostgresStore); !ok && (c.Group != 0 || c.Deferred || c.Lazy) {
		return fmt.Errorf("Config.Lazy is %t, Config.Group is %d and Config.Deferred is %t with a %T: want the store of claim.NewPostgresStore itself, with nothing in front of it",
			c.Lazy, c.Group, c.Deferred, store)
	}
	if _, ok := store.(*PostgresStore); !ok && c.limits() {
		return fmt.Errorf("Config.MaxPerKey, or that of a handler, is set with a %T: want the store of claim.NewPostgresStore itself, with nothing in front of it", store)
	}
	return nil
}

func newModes(store Store, cfg Config) *modes {
	m := &modes{}
	s, _ := store.(*PostgresStore)
	if cfg.Group > 0 {
		m.group = newGroupStore(s, cfg)
	}
	if cfg.Deferred {
		m.flusher = newFlusher(s, cfg.longest())
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
	if err := c.modes.flusher.durable(context.WithoutCancel(ctx), key); err != nil {
		return attempt{err: fmt.Errorf("make the claim durable: %w", err)} // which says nothing against the event
	}
	return a
}

// single claims the event in a transaction of its own. PostgreSQL is not asked for one that this Claim has in hand: it
// would refuse, at the price of a connection and two round trips.
func (c *Claim) single(ctx context.Context, key Key, fn func(ctx context.Context) error) (a attempt) {
	if c.store == Store(c.postgres) {
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
		return pgtx.Queue(ctx, c.modes.flusher.commit)
	}
	a.err = warm(func() (err error) {
		if !c.cfg.Lazy {
			return c.store.Do(ctx, key, handled)
		}
		a.ran, err = c.postgres.lazily(ctx, key, handled)
		return err
	})
	return a
}
