package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware/claim/internal/fault"
	"github.com/millrace-go/millrace/middleware/claim/internal/redelivery"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/middleware/claim/internal/telemetry"
	"github.com/millrace-go/millrace/middleware/claim/internal/warm"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// Middleware runs h under a claim. It acks an event that was processed before, and nacks one that another delivery is
// handling. If h fails or panics, everything is rolled back. The event is redelivered after Config.Backoff, and becomes a dead
// letter after Config.MaxAttempts. The error is returned, so that the router nacks, unless the event is kept in the table (see
// Subscriber). With a store that has no PostgreSQL behind it, errors are returned and no attempts are counted.
//
// Use one claim for each handler: put the middleware on the router or on the handler, and use no OnHandle hook (OnEvent and
// others) inside it. A second claim of the consumer inside the first fails with ErrNestedClaim.
//
// Middleware returns no messages: it stages the messages that h returns. The router would publish them after the commit, and
// lose them if that failed. Retry and poison-queue middleware, and middleware that changes the message's ID, belong outside.
func (c *Claim) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		return nil, c.process(msg, message.HandlerNameFromCtx(msg.Context()), func(ctx context.Context) error {
			return c.handle(ctx, msg, h)
		})
	}
}

// process runs fn, which handles msg for the handler of that name, under a claim.
func (c *Claim) process(msg *message.Message, handler string, fn func(ctx context.Context) error) (err error) {
	came := msg.Context()
	original := came
	defer msg.SetContext(original) // middleware outside must not get a context that has ended
	consumer := c.consumer(handler)
	original, span := c.observer.Begin(original, msg, consumer)
	defer func() { telemetry.End(span, err) }()
	msg.SetContext(original)
	if redelivery.LacksDelivery(msg) {
		r := redelivery.NewRest(msg)
		defer func() { r.End(err) }()
		original = transport.WithDelivery(original, r)
		msg.SetContext(original)
	}

	from := redelivery.From(original)
	if from != nil {
		from.Claimed.Store(true)
	}
	switch { // each mistake has a retry delay, so that it does not become a hot loop
	case transport.UnitFrom(original) != nil:
		transport.DeliveryFrom(original).RetryAfter(fault.OutageDelay)
		return fmt.Errorf("claim event: %w: %q, as the message is delivered transactionally, and that and the database cannot commit together: consume at least once under a claim, or without one",
			transport.ErrForeignUnit, transport.UnitFrom(original).Domain())
	case consumer == "":
		transport.DeliveryFrom(original).RetryAfter(fault.OutageDelay)
		return fmt.Errorf("claim event: no consumer for handler %q: name the router's handler or set Config.Consumer", handler)
	case from != nil && from.Consumer != consumer:
		transport.DeliveryFrom(original).RetryAfter(fault.OutageDelay)
		return fmt.Errorf("claim event: the message came through Subscriber(%q), and the handler's consumer is %q: want the same", from.Consumer, consumer)
	}
	key, err := c.key(msg, consumer)
	if err != nil {
		a := attempt{began: time.Now(), err: fault.Malformed{Err: err}}
		key = Key{Consumer: consumer, EventID: inbox.Synthetic(message.SubscribeTopicFromCtx(original), msg, transport.OriginFrom(original))}
		if row := from.Row(); row != nil {
			key = Key(row.Key)
		}
		return c.settle(original, key, msg, a)
	}
	if err := c.refuseNested(came, key, msg); err != nil {
		return err
	}
	if inbox.Canonical(msg.UUID) == key.EventID { // a handler that uses it in an effect's key sees one spelling, too
		msg.UUID = key.EventID
	}
	if row := from.Row(); row != nil && row.Malformed {
		return c.identify(original, key, msg)
	}
	l, err := c.limit(key, msg)
	if err != nil {
		return c.settle(original, key, msg, attempt{ran: true, err: err})
	}
	if wait, ok := l.enter(); !ok {
		return c.busy(original, key, msg, wait)
	}
	defer l.leave()
	if admitted, err := c.admit(original, key, msg); !admitted {
		return err
	}
	defer c.admitted(key)
	st, err := c.guard.Begin(original, store.Key(key))
	if err != nil {
		return c.settle(original, key, msg, attempt{err: err})
	}
	defer st.End(original)
	if starts, killer := st.Killer(); killer {
		return c.killed(original, key, msg, st, starts)
	}
	for {
		a := c.run(original, key, msg, l, st.Handler(fn))
		if c.rejected(original) && a.ran && a.err != nil {
			a.err = Permanent(a.err)
		}
		st.Over = a.err == nil
		if !a.ran && errors.Is(a.err, ErrBlocked) && c.postgres != nil {
			settled, err := c.block(original, key, msg)
			if !settled {
				continue
			}
			return err
		}
		return c.settle(original, key, msg, a)
	}
}

// rejected reports whether the handler has rejected the message. It takes the rejection back if the claim keeps dead letters itself: a nack
// of the claim asks for a redelivery, and the rejection of one handler is not that of the next one of its group.
func (c *Claim) rejected(ctx context.Context) bool {
	d := transport.DeliveryFrom(ctx)
	rejected := d.Rejected() != nil
	if rejected && c.postgres != nil {
		d.Reject(nil)
	}
	return rejected
}

// run makes one attempt within the consumer's timeout. The router cancels the contexts of running handlers when it closes, but
// a claim that has begun may finish.
func (c *Claim) run(original context.Context, key Key, msg *message.Message, l *limited, fn func(ctx context.Context) error) (a attempt) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(original), c.cfg.timeout(key.Consumer))
	defer cancel()
	defer msg.SetContext(original)
	ctx = outbox.WithCause(ctx, key.EventID)
	if c.cfg.RunTooOld {
		ctx = store.WithProof(ctx)
	}
	began := time.Now()
	handled := fault.Guard(c.cfg.timeout(key.Consumer), panicError, func(ctx context.Context) error {
		if err := l.take(ctx); err != nil {
			return err
		}
		r := &running{claim: c, msg: msg, key: key} // of its own: a group that dissolves, or a lazy claim, may run the handler again
		defer func() { a.skipped = r.skip.Load() }()
		return r.run(ctx, fn)
	})
	if row := redelivery.From(original).Row(); row != nil {
		a.err = warm.Do(func() error {
			return c.postgres.Retry(ctx, *row, func(ctx context.Context) error {
				a.ran = true
				return handled(ctx)
			})
		})
	} else {
		r := c.attempt(ctx, key, handled)
		a.ran, a.err = r.Ran, r.Err
	}
	a.began = began
	return a
}

func (c *Claim) key(msg *message.Message, consumer string) (Key, error) {
	if row := redelivery.From(msg.Context()).Row(); row != nil && !row.Malformed {
		return Key(row.Key), nil
	}
	id, err := c.eventID(msg)
	switch {
	case err != nil:
		return Key{}, err
	case id == "":
		return Key{}, noEventID(msg.Context())
	}
	if err := inbox.CheckID(id); err != nil {
		return Key{}, err
	}
	k := Key{Consumer: consumer, EventID: inbox.Canonical(id), Due: redelivery.Due(msg)}
	if c.cfg.Ordered {
		k.Order = inbox.OrderKey(transport.Key(msg))
	}
	return k, nil
}

// noEventID returns an error that says why the message has no event ID, and what to do.
func noEventID(ctx context.Context) error {
	if reason := transport.EventIDErrorFrom(ctx); reason != nil {
		return fmt.Errorf("%w: %w", ErrNoEventID, reason)
	}
	return fmt.Errorf("%w: have its producer send one, or set claim.Config.EventID in Go to where it is; then replay the event", ErrNoEventID)
}

// eventID calls Config.EventID. A panic becomes an error, because any message may arrive.
func (c *Claim) eventID(msg *message.Message) (id string, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("Config.EventID panicked: %v", v)
		}
	}()
	return c.cfg.EventID(msg)
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
