package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware/claim/internal/crashguard"
	"github.com/millrace-go/millrace/middleware/claim/internal/fault"
	"github.com/millrace-go/millrace/middleware/claim/internal/redelivery"
	"github.com/millrace-go/millrace/middleware/claim/internal/slot"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/middleware/claim/internal/telemetry"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// settle decides how the message is answered: nil acks, an error nacks, and a message that was nacked here stays nacked.
// msg's context is that of the delivery. A failed attempt has been rolled back already.
func (c *Claim) settle(ctx context.Context, key Key, msg *message.Message, a attempt) error {
	from := redelivery.From(msg.Context())
	tabled := from.Row() != nil // the event has a row in the table
	early := ackedEarly(msg)
	if early {
		c.tellAcked(ctx, key)
	}
	switch {
	case a.err == nil:
		c.losses.Ended(store.Key(key), true)
		if !a.skipped {
			c.worked(ctx, key.Consumer)
		}
		c.observer.Completed(ctx, store.Key(key), a.began)
		if tabled {
			c.redelivery.Wake(key.Consumer) // the next event of its key may be due now
		}
		return nil
	case errors.As(a.err, new(*busyError)):
		return c.busy(ctx, key, msg, slot.Near)
	case !a.ran && (errors.Is(a.err, ErrCompleted) || errors.Is(a.err, store.ErrGone)):
		return c.duplicate(ctx, key)
	case !a.ran && errors.Is(a.err, store.ErrChanged):
		return c.comeBack(msg, time.Millisecond)
	case !a.ran && errors.As(a.err, new(crashguard.AloneError)):
		c.observer.Count(ctx, key.Consumer, telemetry.OutcomeContended)
		return c.turnedAway(ctx, key, msg, a.err, c.cfg.timeout(key.Consumer))
	case !a.ran && errors.Is(a.err, ErrContended):
		return c.contended(ctx, key, msg)
	}
	err := fmt.Errorf("claim event %q for consumer %q: %w", key.EventID, key.Consumer, a.err)
	f := fault.Of(fault.Failure{Err: a.err, Ran: a.ran, Panicked: errors.As(a.err, new(*PanicError)), Stopping: msg.Context().Err() != nil}).
		Ruled(transport.TopicOf(ctx, topicOf(ctx)), a.err, c.cfg.of(key.Consumer).Retry, c.cfg.Retry)
	f = c.excuse(ctx, key, f, a.err)
	if c.postgres == nil {
		c.observer.Count(ctx, key.Consumer, telemetry.OutcomeFailed)
		if early {
			telemetry.Lost(ctx, c.cfg.Logger, store.Key(key), err)
		}
		transport.DeliveryFrom(msg.Context()).RetryAfter(fault.OutageDelay) // avoid a hot loop
		return err
	}
	if a.ran {
		f, a.err = c.losses.Judge(store.Key(key), f, a.err)
	}
	if early {
		return c.keepAcked(ctx, key, msg, f, a.err, err)
	}
	if f.Reason == "" || (f.Reason == fault.ReasonRetry || f.Reason == fault.ReasonOutage) && from == nil { // there is nothing to record
		transport.DeliveryFrom(msg.Context()).RetryAfter(max(f.After, fault.OutageDelay))
		c.observer.Count(ctx, key.Consumer, telemetry.OutcomeFailed)
		return err
	}
	return c.fail(ctx, key, msg, f, a.err, err)
}

// keepAcked keeps an event in the table that was not handled and whose message was acked, because the broker will not redeliver it.
func (c *Claim) keepAcked(ctx context.Context, key Key, msg *message.Message, f fault.Fault, cause, err error) error {
	f.Reason = cmp.Or(f.Reason, fault.ReasonAcked)
	f.Hopeless = f.Hopeless || redelivery.From(msg.Context()) == nil // the table does not retry it without Subscriber
	if err := c.fail(ctx, key, msg, f, cause, err); err != nil {
		telemetry.Lost(ctx, c.cfg.Logger, store.Key(key), err)
		return err
	}
	return nil
}

// turnedAway nacks an event that cannot be handled now, for the reason why.
func (c *Claim) turnedAway(ctx context.Context, key Key, msg *message.Message, why error, wait time.Duration) error {
	if c.postgres != nil && ackedEarly(msg) {
		return c.keepAcked(ctx, key, msg, fault.Fault{}, why, fmt.Errorf("claim event %q for consumer %q: %w", key.EventID, key.Consumer, why))
	}
	return c.comeBack(msg, wait)
}

// fail records the failure with its cause. It returns err if the broker is to redeliver the event.
func (c *Claim) fail(ctx context.Context, key Key, msg *message.Message, f fault.Fault, cause, err error) error {
	e, eerr := c.event(key, msg)
	if eerr != nil {
		return errors.Join(err, eerr)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.KeepTimeout) // the handler's deadline may have passed
	defer cancel()
	back := redelivery.From(msg.Context()) != nil
	v, kerr := c.postgres.Keep(ctx, e, f.Reason == fault.ReasonLost, failureText(cause),
		func(attempts int) store.Verdict {
			return f.Verdict(attempts, back, fault.Policy{MaxAttempts: c.cfg.MaxAttempts, Backoff: c.cfg.Backoff})
		},
		func(ctx context.Context, v store.Verdict) error { return c.forward(ctx, e, msg, v, cause) })
	switch {
	case errors.Is(kerr, ErrContended):
		return c.contended(ctx, key, msg)
	case kerr != nil:
		transport.DeliveryFrom(msg.Context()).RetryAfter(fault.OutageDelay)
		return errors.Join(err, fmt.Errorf("record the failure: %w", kerr))
	case v.State == "":
		if errors.Is(cause, pgtx.ErrManaged) {
			c.cfg.Logger.ErrorContext(ctx, "handler committed the claim's transaction itself: the event counts as processed, and what the handler did after that COMMIT is lost",
				"event_id", key.EventID, "consumer", key.Consumer, "error", cause)
		}
		return c.duplicate(ctx, key)
	}
	outcome := telemetry.OutcomeFailed
	switch v.State {
	case store.StateDead:
		outcome = telemetry.OutcomeDead
	case store.StateIgnored:
		outcome = telemetry.OutcomeIgnored
	}
	c.observer.Count(ctx, key.Consumer, outcome)
	if !v.Acks() {
		transport.DeliveryFrom(msg.Context()).RetryAfter(v.Delay)
		return err
	}
	telemetry.Kept(ctx, c.cfg.Logger, e.Key, v, cause)
	c.redelivery.Wake(key.Consumer)
	return nil
}

// block keeps an event as blocked behind an earlier failed event of its key. settled is false if the key is no longer blocked,
// so that the claim should be tried again.
func (c *Claim) block(ctx context.Context, key Key, msg *message.Message) (settled bool, err error) {
	e, err := c.event(key, msg)
	if err != nil {
		return true, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.KeepTimeout)
	defer cancel()
	most := c.cfg.MaxBlocked
	if ackedEarly(msg) { // the broker will not redeliver it
		most = 0
	}
	blocked, err := c.postgres.Block(ctx, e, most)
	var full store.FullError
	switch {
	case errors.As(err, &full):
		c.observer.Count(ctx, key.Consumer, telemetry.OutcomeFull)
		if full.Since {
			telemetry.Full(ctx, c.cfg.Logger, e.Key, c.cfg.MaxBlocked)
		}
		return true, c.comeBack(msg, fault.Jitter(maxTurnedAway))
	case errors.Is(err, store.ErrFree):
		return false, nil
	case errors.Is(err, ErrContended):
		return true, c.contended(ctx, key, msg)
	case err != nil:
		transport.DeliveryFrom(msg.Context()).RetryAfter(fault.OutageDelay)
		return true, fmt.Errorf("block event %q of consumer %q: %w", key.EventID, key.Consumer, err)
	case !blocked:
		return true, c.duplicate(ctx, key)
	}
	c.observer.Count(ctx, key.Consumer, telemetry.OutcomeBlocked)
	c.cfg.Logger.DebugContext(ctx, "event waits behind one that failed", "event_id", key.EventID, "consumer", key.Consumer)
	return true, nil
}

func (c *Claim) duplicate(ctx context.Context, key Key) error {
	c.observer.Count(ctx, key.Consumer, telemetry.OutcomeDuplicate)
	c.cfg.Logger.DebugContext(ctx, "duplicate absorbed", "event_id", key.EventID, "consumer", key.Consumer)
	return nil
}

func (c *Claim) contended(ctx context.Context, key Key, msg *message.Message) error {
	c.observer.Count(ctx, key.Consumer, telemetry.OutcomeContended)
	c.cfg.Logger.DebugContext(ctx, "claim contended", "event_id", key.EventID, "consumer", key.Consumer)
	after := fault.ContendedDelay
	if redelivery.RestOf(msg) != nil {
		after = redelivery.ContendedRest
	}
	return c.comeBack(msg, after)
}

// comeBack nacks without an error, because an error could reach a poison queue or be retried at once. Inside the claim of
// another consumer it returns an error, so that the outer claim does not complete.
func (c *Claim) comeBack(msg *message.Message, after time.Duration) error {
	transport.DeliveryFrom(msg.Context()).RetryAfter(after)
	if ackedEarly(msg) {
		err := fmt.Errorf("claim event %q: %w", msg.UUID, ErrContended)
		c.cfg.Logger.ErrorContext(msg.Context(), "event cannot be redelivered: its message was acked before its claim committed. Remove InstantAck, or whatever else acks",
			"message", msg.UUID, "error", err)
		return err
	}
	r := redelivery.RestOf(msg)
	switch {
	case runningIn(msg.Context()) != nil:
		return fmt.Errorf("claim event %q inside another claim: %w", msg.UUID, ErrContended)
	case r != nil:
		r.Nack = true
	default:
		msg.Nack()
	}
	return nil
}

// topicOf returns the topic of the message whose context is ctx.
func topicOf(ctx context.Context) string {
	if from := redelivery.From(ctx); from != nil {
		return from.Topic
	}
	return message.SubscribeTopicFromCtx(ctx)
}

// event returns the part of the message that the table keeps.
func (c *Claim) event(key Key, msg *message.Message) (store.Event, error) {
	ctx := msg.Context()
	e := store.Event{Key: store.Key(key), Handler: message.HandlerNameFromCtx(ctx), Topic: topicOf(ctx)}
	if row := redelivery.From(ctx).Row(); row != nil { // the row has the headers and the payload
		e.Record, e.Row = row.Record, row.Row
		return e, nil
	}
	var err error
	if e.Headers, err = inbox.EncodeHeaders(msg, transport.OriginFrom(ctx)); err != nil {
		return e, fmt.Errorf("keep event %q: %w", key.EventID, err)
	}
	e.Record, e.Payload = store.Key(key).Record(), msg.Payload
	if e.Payload == nil {
		e.Payload = []byte{} // nil would leave a stored payload unchanged
	}
	return e, nil
}

// failureText is the text that the table keeps of an error.
func failureText(err error) string {
	var panicked *PanicError
	if errors.As(err, &panicked) {
		return err.Error() + "\n" + string(panicked.Stack)
	}
	return err.Error()
}
