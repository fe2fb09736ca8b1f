package claim

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// Middleware runs h under a claim. It acks an event that was processed before, nacks one that another consumer works on,
// and returns h's error (the router nacks) after everything was rolled back. It returns no messages: those of h are
// staged, because the router would publish them after the commit, and lose them if that failed.
//
// Retry and poison-queue middleware belongs outside of it; middleware that changes the message's ID does too.
func (c *Claim) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		return nil, c.process(msg, message.HandlerNameFromCtx(msg.Context()), func(ctx context.Context) error {
			return c.handle(ctx, msg, h)
		})
	}
}

// process runs fn, which handles msg for the handler of that name, under a claim.
func (c *Claim) process(msg *message.Message, handler string, fn func(ctx context.Context) error) error {
	original := msg.Context()
	defer msg.SetContext(original) // whatever is outside must not meet a context that has ended

	key, err := c.key(msg, handler)
	if err != nil {
		return fmt.Errorf("claim event: %w", err)
	}
	st, err := c.begin(original, key)
	if err != nil {
		return c.settle(context.WithoutCancel(original), key, msg, attempt{err: err})
	}
	defer st.end(original)
	// The router cancels the contexts of running handlers when it closes; a claim that has begun may finish.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(original), c.cfg.HandlerTimeout)
	defer cancel()
	if st.killer {
		return st.bury(ctx, key, msg)
	}
	a := c.attempt(ctx, key, msg, st.handler(fn))
	st.over = a.err == nil
	msg.SetContext(original)
	return c.settle(ctx, key, msg, a)
}

func (c *Claim) key(msg *message.Message, handler string) (Key, error) {
	id, err := c.cfg.EventID(msg)
	if err != nil {
		return Key{}, err
	}
	if id == "" {
		return Key{}, ErrNoEventID
	}
	k := Key{Consumer: c.cfg.Consumer(handler), EventID: id, Due: dueTime(msg)}
	if k.Consumer == "" {
		return Key{}, fmt.Errorf("no consumer for handler %q: name the router's handler or set Config.Consumer", handler)
	}
	if c.cfg.Ordered {
		k.Order = transport.Key(msg)
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
