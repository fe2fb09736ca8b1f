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

// Middleware that stands in the wrong place loses events without an error: inside the claim it lets an event count as processed
// whose handler did not run, or failed; outside, or inside, it acks before the claim has committed. What of that shows is
// turned into errors here, or at least told.

var (
	// ErrNotHandled means that middleware inside of the claim has returned no error although the handler was not called, or had
	// failed: Watermill's Deduplicator or PoisonQueue. Nothing is recorded as processed: the event fails as with any other error.
	// Remove that middleware, or put it outside of the claim; one that leaves events out on purpose calls Skip. Then replay the
	// dead letters.
	ErrNotHandled = errors.New("middleware inside of the claim returned no error, although")

	// ErrCalledAgain means that middleware inside of the claim has called the handler twice: Watermill's Retry or Duplicator. The
	// writes of both calls would be committed. The claim retries by itself: remove that middleware, or put it outside of the claim.
	ErrCalledAgain = errors.New("middleware inside of the claim called the handler again, in the transaction of its first call: " +
		"remove Retry or Duplicator, or put it outside of the claim")
)

// poison is what Watermill's PoisonQueue adds to the metadata of a message whose handler has failed: why, and where.
type poison [4]string

var poisonKeys = poison{"reason_poisoned", "topic_poisoned", "handler_poisoned", "subscriber_poisoned"}

func poisonOf(msg *message.Message) (p poison) {
	for i, key := range poisonKeys {
		p[i] = msg.Metadata[key]
	}
	return p
}

// restore makes the message's metadata what it was, so that the next failure shows again.
func (p poison) restore(msg *message.Message) {
	for i, key := range poisonKeys {
		if p[i] == "" {
			delete(msg.Metadata, key)
		} else {
			msg.Metadata[key] = p[i]
		}
	}
}

// Handler wraps the innermost handler of the consumer, so that the claim sees whether middleware between the two has left it
// out (ErrNotHandled) or called it twice (ErrCalledAgain). consumer is what Config.Consumer returns for the handler. The
// framework wraps its handlers.
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

// Skip tells the claim, from middleware that it contains, that an event's handler is left out on purpose, as a filter does. The
// event counts as processed. ctx is the message's. Without a claim it does nothing.
func Skip(ctx context.Context) {
	if r := runningIn(ctx); r != nil {
		r.skip.Store(true)
	}
}

// handled judges what came back from the middleware inside of the claim. before is what the message's metadata said of a
// PoisonQueue then.
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

// ackedEarly reports whether somebody has acked a message that the broker delivered. The router does so after the claim, and the
// broker forgets it then. What comes from the table of failed events stays there.
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

// tellAcked tells, once for each consumer, that messages are acked before their claim has committed.
func (c *Claim) tellAcked(ctx context.Context, key Key) {
	if _, told := c.early.LoadOrStore(key.Consumer, nil); !told {
		c.cfg.Logger.ErrorContext(ctx, "message was acked before its claim committed: a process that is killed in between loses the event. Remove InstantAck, or whatever else acks",
			"event_id", key.EventID, "consumer", key.Consumer)
	}
}
