// Package claim is the idempotent consumer: Watermill router middleware that claims an event by its ID, so that any
// number of deliveries has one effect.
//
// With the PostgreSQL store the claim, the handler's writes and the events that it publishes are one transaction. The
// handler finds it with pgtx.From(msg.Context()); messages that it returns are staged in the outbox inside it. So the
// effect happens once per consumer and event ID within that database. It does not cover effects elsewhere, such as a
// text message sent by a provider: a process that dies between such a call and the commit repeats the call.
package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

var (
	// ErrContended means that another consumer holds the claim at this moment. The middleware nacks the message, so
	// that it comes back in case the other one fails.
	ErrContended = errors.New("another consumer holds the claim")

	// ErrCompleted means that the event was processed before. The middleware acks the message.
	ErrCompleted = errors.New("the event was processed before")

	// ErrNoEventID means that a message cannot be told from its duplicates. Give it an ID where the event happens, or
	// set Config.EventID.
	ErrNoEventID = errors.New("the message has no event ID")
)

// contendedDelay is when a contended message comes back: long enough to be no hot loop, short beside the time in which
// a crashed holder's transaction is noticed.
const contendedDelay = 250 * time.Millisecond

// Key names one effect: an event as one consumer sees it.
type Key struct{ Consumer, EventID string }

// Store keeps the claims.
type Store interface {
	// Do claims key, calls fn and completes the claim if fn returned nil. When fn fails or panics, or the process
	// dies, the claim has never existed. It returns ErrContended or ErrCompleted, without calling fn, when another
	// one holds the claim or has completed it, and fn's error if there is one. The context's deadline is when fn
	// should be done.
	Do(ctx context.Context, key Key, fn func(ctx context.Context) error) error

	// Stage hands over a message that the handler returned; ctx is that of fn. It is sent to topic if and, apart from
	// the stores that say otherwise, only if the claim is completed.
	Stage(ctx context.Context, topic string, msgs ...*message.Message) error
}

// Config configures a Claim. Its zero value is ready for use.
type Config struct {
	// Consumer names the scope of a claim: each event has one effect in each. Renaming it makes redelivered events run
	// again. Default: the name of the router's handler.
	Consumer func(handler string) string

	// EventID tells an event from others. Duplicates must have the same; the ID that the broker gives to a message is
	// never it. Default: the message's UUID.
	EventID func(msg *message.Message) (string, error)

	// HandlerTimeout bounds a handler's run with its transaction, the wait for a connection of the pool included. The
	// handler's context ends then, and not when the router closes: what is running may finish. 1 ms or more.
	// Default: 30 s.
	HandlerTimeout time.Duration

	// Logger gets duplicates and contention, at debug level. Default: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Consumer == nil {
		c.Consumer = func(handler string) string { return handler }
	}
	if c.EventID == nil {
		c.EventID = func(msg *message.Message) (string, error) { return msg.UUID, nil }
	}
	if c.HandlerTimeout == 0 {
		c.HandlerTimeout = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Claim makes handlers idempotent. It is safe for concurrent use.
type Claim struct {
	store Store
	cfg   Config
}

// New returns a Claim that keeps its claims in store.
func New(store Store, cfg Config) (*Claim, error) {
	var errs []error
	if store == nil {
		errs = append(errs, errors.New("store is nil: want claim.NewPostgresStore(pool)"))
	} else if v, ok := store.(interface{ validate() error }); ok {
		errs = append(errs, v.validate())
	}
	cfg = cfg.withDefaults()
	if cfg.HandlerTimeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("Config.HandlerTimeout is %v: want 1ms or more, or 0 for the default", cfg.HandlerTimeout))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	return &Claim{store: store, cfg: cfg}, nil
}

// Middleware runs h under a claim. It acks an event that was processed before, nacks one that another consumer works on,
// and returns h's error (the router nacks) after everything was rolled back. It returns no messages: those of h are
// staged, because the router would publish them after the commit, and lose them if that failed.
//
// Retry and poison-queue middleware belongs outside of it; middleware that changes the message's ID does too.
func (c *Claim) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		original := msg.Context()
		defer msg.SetContext(original) // whatever is outside must not meet a context that has ended

		key, err := c.key(msg)
		if err != nil {
			return nil, fmt.Errorf("claim event: %w", err)
		}
		// The router cancels the contexts of running handlers when it closes; a claim that has begun may finish.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(original), c.cfg.HandlerTimeout)
		defer cancel()
		ran := false // what the handler returns is its own, even ErrCompleted of another claim
		err = c.store.Do(ctx, key, func(ctx context.Context) error {
			ran = true
			return c.handle(ctx, msg, h)
		})
		switch {
		case !ran && errors.Is(err, ErrCompleted):
			c.cfg.Logger.DebugContext(ctx, "duplicate absorbed", "event_id", key.EventID, "consumer", key.Consumer)
			return nil, nil
		case !ran && errors.Is(err, ErrContended):
			// Not an error: it must neither reach a poison queue nor be retried on the spot.
			c.cfg.Logger.DebugContext(ctx, "claim contended", "event_id", key.EventID, "consumer", key.Consumer)
			transport.DeliveryFrom(original).RetryAfter(contendedDelay)
			msg.Nack()
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("claim event %q for consumer %q: %w", key.EventID, key.Consumer, err)
		}
		return nil, nil
	}
}

func (c *Claim) key(msg *message.Message) (Key, error) {
	id, err := c.cfg.EventID(msg)
	if err != nil {
		return Key{}, err
	}
	if id == "" {
		return Key{}, ErrNoEventID
	}
	handler := message.HandlerNameFromCtx(msg.Context())
	k := Key{Consumer: c.cfg.Consumer(handler), EventID: id}
	if k.Consumer == "" {
		return Key{}, fmt.Errorf("no consumer for handler %q: name the router's handler or set Config.Consumer", handler)
	}
	return k, nil
}

func (c *Claim) handle(ctx context.Context, msg *message.Message, h message.HandlerFunc) error {
	msg.SetContext(ctx)
	outputs, err := h(msg)
	if err != nil || len(outputs) == 0 {
		return err
	}
	topic := message.PublishTopicFromCtx(ctx)
	if topic == "" {
		return errors.New("stage outputs: the handler returned messages but has no publish topic: add it to the router with AddHandler")
	}
	for _, out := range outputs {
		out.SetContext(ctx)
	}
	if err := c.store.Stage(ctx, topic, outputs...); err != nil {
		return fmt.Errorf("stage outputs: %w", err)
	}
	return nil
}
