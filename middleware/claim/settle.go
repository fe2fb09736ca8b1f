package claim

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// settle decides what the broker is told: nil acks, an error nacks, and a message that was nacked here stays nacked.
// msg's context is the delivery's own.
func (c *Claim) settle(ctx context.Context, key Key, msg *message.Message, a attempt) error {
	switch {
	case !a.ran && errors.Is(a.err, ErrCompleted):
		c.cfg.Logger.DebugContext(ctx, "duplicate absorbed", "event_id", key.EventID, "consumer", key.Consumer)
		return nil
	case !a.ran && errors.Is(a.err, ErrContended):
		// Not an error: it must neither reach a poison queue nor be retried on the spot.
		c.cfg.Logger.DebugContext(ctx, "claim contended", "event_id", key.EventID, "consumer", key.Consumer)
		transport.DeliveryFrom(msg.Context()).RetryAfter(contendedDelay)
		msg.Nack()
		return nil
	case a.err != nil:
		return fmt.Errorf("claim event %q for consumer %q: %w", key.EventID, key.Consumer, a.err)
	}
	return nil
}
