package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

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
		return c.comeBack(msg, c.cfg.timeout(key.Consumer))
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
			c.lose(ctx, key, err)
		}
		transport.DeliveryFrom(msg.Context()).RetryAfter(fault.OutageDelay) // avoid a hot loop
		return err
	}
	switch {
	case !a.ran: // not run, so no connection was lost in the handler
	case fault.WasLost(a.err):
		if n := c.losses.Lost(store.Key(key)); n > 0 {
			f = fault.Fault{Reason: fault.ReasonLost, Counted: true}
			a.err = fmt.Errorf("the connection to the database was lost %d times in a row in this handler, while other events committed: %w", n, a.err)
		}
	case f.Reason == "" && fault.WasOutage(a.err):
		if n := c.losses.Lost(store.Key(key)); n > 0 {
			f = fault.Fault{Reason: fault.ReasonError, Counted: true}
			a.err = fmt.Errorf("the database failed %d times in a row in this handler, while other events committed: %w", n, a.err)
		}
	default:
		c.losses.Ended(store.Key(key), false)
	}
	if early { // the broker will not redeliver it
		f.Reason = cmp.Or(f.Reason, fault.ReasonAcked)
		f.Hopeless = f.Hopeless || from == nil // and the table does not retry it without Subscriber
		if ferr := c.fail(ctx, key, msg, f, a.err, err); ferr != nil {
			c.lose(ctx, key, ferr)
			return ferr
		}
		return nil
	}
	if f.Reason == "" || (f.Reason == fault.ReasonRetry || f.Reason == fault.ReasonOutage) && from == nil { // there is nothing to record
		transport.DeliveryFrom(msg.Context()).RetryAfter(max(f.After, fault.OutageDelay))
		c.observer.Count(ctx, key.Consumer, telemetry.OutcomeFailed)
		return err
	}
	return c.fail(ctx, key, msg, f, a.err, err)
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
	// The router sees success, so traces would too without this span.
	telemetry.Spoil(trace.SpanFromContext(ctx), cause)
	attrs := []slog.Attr{
		slog.String("event_id", key.EventID), slog.String("consumer", key.Consumer), slog.String("reason", v.Reason),
		slog.Int("attempts", v.Attempts), slog.Any("error", cause),
	}
	switch v.State {
	case store.StateDead:
		c.cfg.Logger.LogAttrs(ctx, slog.LevelError, "event is a dead letter", attrs...)
	case store.StateIgnored:
		c.cfg.Logger.LogAttrs(ctx, slog.LevelInfo, "event failed with an error that a rule ignores: it counts as processed", attrs...)
	default:
		c.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "event failed and will be tried again", append(attrs, slog.Duration("retry_in", v.Delay))...)
	}
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
			c.cfg.Logger.WarnContext(ctx, "key is full: as many events as MaxBlocked allows wait behind one that failed, so the broker keeps the next ones. Replay or discard the first event of the key",
				"consumer", key.Consumer, "max_blocked", c.cfg.MaxBlocked, "event_id", key.EventID)
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

// lose logs that an event is lost, because it was acked early and could not be kept.
func (c *Claim) lose(ctx context.Context, key Key, err error) {
	c.cfg.Logger.ErrorContext(ctx, "event is lost: its message was acked before its claim committed, and nobody redelivers it. Remove InstantAck, or whatever else acks",
		"event_id", key.EventID, "consumer", key.Consumer, "error", err)
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
