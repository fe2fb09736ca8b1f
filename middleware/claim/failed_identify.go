package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware/claim/internal/fault"
	"github.com/millrace-go/millrace/middleware/claim/internal/redelivery"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/transport"
)

// An event without a usable ID is a dead letter under an ID that is a hash of its content and origin (inbox.Synthetic). Its handler
// never runs under that ID, because the broker may deliver the event again after its real ID can be found. When an operator
// replays the event, Claim looks for its ID again: Config.EventID may have changed, or the transport's configuration of foreign
// producers. If no ID is found, the event becomes a dead letter again.

// identify gives a replayed event the ID that was found for it. The event is then redelivered under that ID.
func (c *Claim) identify(ctx context.Context, key Key, msg *message.Message) error {
	former := *redelivery.From(ctx).Event
	h, err := inbox.EncodeHeaders(msg, transport.OriginFrom(ctx))
	if err != nil {
		return fmt.Errorf("keep event %q: %w", key.EventID, err)
	}
	keeping, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.KeepTimeout)
	defer cancel()
	kept, err := c.postgres.Identify(keeping, former, store.Key(key), h)
	switch {
	case errors.Is(err, ErrContended):
		return c.contended(ctx, key, msg)
	case err != nil:
		transport.DeliveryFrom(ctx).RetryAfter(fault.OutageDelay)
		return fmt.Errorf("give event %q of consumer %q its ID %q: %w", former.Key.EventID, key.Consumer, key.EventID, err)
	case !kept:
		return c.duplicate(ctx, key)
	}
	c.cfg.Logger.InfoContext(ctx, "replayed event was given its ID",
		slog.String("event_id", key.EventID), slog.String("former_id", former.Key.EventID), slog.String("consumer", key.Consumer))
	return c.comeBack(msg, time.Millisecond)
}
