package claim

import (
	"context"
	"errors"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/middleware/claim/internal/telemetry"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// Metadata that the copy of a dead letter sent to Config.DeadLetterTopic has beside the metadata of the event.
const (
	DeadReasonMetadata   = transport.DeadReasonMetadata // one word, such as "permanent" or "attempts"
	DeadErrorMetadata    = transport.DeadErrorMetadata  // the error of the last attempt, its first 1,000 bytes
	DeadConsumerMetadata = "millrace_dead_consumer"     // the consumer whose handler failed
	DeadTopicMetadata    = "millrace_dead_topic"        // the topic that the event came from
	DeadAttemptsMetadata = "millrace_dead_attempts"     // a decimal number
)

// bury makes a dead letter of an event without trying it now. dead is false if the event has been settled meanwhile. It returns
// ErrContended if another delivery holds the event.
func (c *Claim) bury(ctx context.Context, key Key, msg *message.Message, reason string, cause error) (dead bool, err error) {
	e, err := c.event(key, msg)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.KeepTimeout)
	defer cancel()
	v, err := c.postgres.Keep(ctx, e, false, cause.Error(),
		func(attempts int) store.Verdict {
			return store.Verdict{State: store.StateDead, Reason: reason, Attempts: attempts}
		},
		func(ctx context.Context, v store.Verdict) error { return c.forward(ctx, e, msg, v, cause) })
	if dead = err == nil && v.State == store.StateDead; dead {
		c.observer.Count(ctx, key.Consumer, telemetry.OutcomeDead)
	}
	return dead, err
}

// forward stages a copy of a dead letter in the transaction that ctx carries. A copy that the outbox cannot accept as a message
// is logged and not sent: the dead letter in the table is complete.
func (c *Claim) forward(ctx context.Context, e store.Event, msg *message.Message, v store.Verdict, failure error) error {
	if v.State != store.StateDead || c.cfg.DeadLetterTopic == "" {
		return nil
	}
	dead := msg.Copy()
	if dead.UUID == "" {
		dead.UUID = outbox.NewID()
	}
	for k, text := range map[string]string{
		DeadReasonMetadata:   v.Reason,
		DeadErrorMetadata:    inbox.Printable(failure.Error(), 1000),
		DeadConsumerMetadata: e.Key.Consumer,
		DeadTopicMetadata:    inbox.Printable(transport.TopicOf(msg.Context(), e.Topic), 1000),
		DeadAttemptsMetadata: strconv.Itoa(v.Attempts),
	} {
		dead.Metadata.Set(k, text)
	}
	dead.SetContext(ctx)
	err := c.store.Stage(ctx, c.cfg.DeadLetterTopic, dead)
	if errors.Is(err, outbox.ErrInvalidMessage) {
		c.cfg.Logger.WarnContext(ctx, "dead letter cannot be forwarded", "event_id", e.Key.EventID, "consumer", e.Key.Consumer, "error", err)
		return nil
	}
	return err
}
