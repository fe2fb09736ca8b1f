package claim

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/sony/gobreaker"

	"github.com/millrace-go/millrace/middleware/claim/internal/fault"

	"github.com/millrace-go/millrace/middleware/claim/internal/redelivery"
)

// Middleware in the wrong place loses events without an error. Inside the claim it can hide that the handler did not run or
// failed, so that the event counts as processed. Inside or outside it can ack before the claim has committed. This file turns
// such mistakes into errors where they can be seen, or at least logs them.

var (
	// ErrNotHandled means that middleware inside the claim has returned no error although the handler was not called or has
	// failed. Watermill's Deduplicator and PoisonQueue do so. No record is written: the event fails as with any other error.
	// Remove that middleware, or put it outside the claim. Middleware that leaves events out on purpose must call Skip. Then
	// replay the dead letters.
	ErrNotHandled = errors.New("middleware inside of the claim returned no error, although")

	// ErrCalledAgain means that middleware inside the claim has called the handler twice. Watermill's Retry and Duplicator do so. The
	// writes of both calls would be committed. The claim retries by itself: remove that middleware, or put it outside the claim.
	ErrCalledAgain = errors.New("middleware inside of the claim called the handler again, in the transaction of its first call: " +
		"remove Retry or Duplicator, or put it outside of the claim")
)

// poison is the metadata that Watermill's PoisonQueue adds to a message whose handler has failed.
type poison [4]string

var poisonKeys = poison{"reason_poisoned", "topic_poisoned", "handler_poisoned", "subscriber_poisoned"}

func poisonOf(msg *message.Message) (p poison) {
	for i, key := range poisonKeys {
		p[i] = msg.Metadata[key]
	}
	return p
}

// restore sets the message's metadata back to p, so that the next failure can be noticed too.
func (p poison) restore(msg *message.Message) {
	for i, key := range poisonKeys {
		if p[i] == "" {
			delete(msg.Metadata, key)
		} else {
			msg.Metadata[key] = p[i]
		}
	}
}

// Handler wraps the innermost handler of the consumer. So the claim notices if middleware between the two has not called the
// handler (ErrNotHandled) or has called it twice (ErrCalledAgain). consumer is what Config.Consumer returns for the handler. The
// framework wraps its handlers with it.
func (c *Claim) Handler(consumer string, h message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	consumer = c.scoped(consumer)
	c.counted.Store(consumer, nil)
	return func(msg *message.Message) error {
		r := runningIn(msg.Context())
		for r != nil && (r.claim != c || r.key.Consumer != consumer) {
			r = r.outer
		}
		if r != nil && r.calls.Add(1) > 1 {
			return ErrCalledAgain
		}
		return h(msg)
	}
}

// Skip tells the claim that the event's handler is left out on purpose, as a filter does. The event counts as processed.
// Middleware inside the claim calls Skip with the message's context. Without a claim Skip does nothing.
func Skip(ctx context.Context) {
	if r := runningIn(ctx); r != nil {
		r.skip.Store(true)
	}
}

// handled decides whether the middleware inside the claim has handled the event. before is the PoisonQueue metadata from before
// the call.
func (r *running) handled(err error, before poison) error {
	after := poisonOf(r.msg)
	if after != before {
		before.restore(r.msg)
	}
	_, counted := r.claim.counted.Load(r.key.Consumer)
	switch {
	case r.calls.Load() > 1 && !errors.Is(err, ErrCalledAgain):
		return errors.Join(err, ErrCalledAgain)
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		return fault.Broken{Err: err}
	case err != nil:
		return err
	case after != before:
		return fmt.Errorf("%w the handler failed (%s): remove PoisonQueue, for the claim keeps dead letters by itself, or put it outside of the claim",
			ErrNotHandled, after[0])
	case counted && r.calls.Load() == 0 && !r.skip.Load():
		return fmt.Errorf("%w the handler was not called: remove Deduplicator, or put it outside of the claim; middleware that leaves events out on purpose has to call claim.Skip", ErrNotHandled)
	}
	return nil
}

// ackedEarly reports whether a message that the broker delivered was acked already. The router should ack it after the claim. Once it
// is acked the broker will not redeliver it. For an event from the table of failed events it is false: its row is still there.
func ackedEarly(msg *message.Message) bool {
	if redelivery.From(msg.Context()).Row() != nil {
		return false
	}
	select {
	case <-msg.Acked():
		return true
	default:
		return false
	}
}

// tellAcked logs, once for each consumer, that messages are acked before their claim has committed.
func (c *Claim) tellAcked(ctx context.Context, key Key) {
	if _, told := c.early.LoadOrStore(key.Consumer, nil); !told {
		c.cfg.Logger.ErrorContext(ctx, "message was acked before its claim committed: a process that is killed in between loses the event. Remove InstantAck, or whatever else acks",
			"event_id", key.EventID, "consumer", key.Consumer)
	}
}
