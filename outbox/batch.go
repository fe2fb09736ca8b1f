package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/cloudheader"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/transport"
)

// send publishes rows of one topic in order. It returns one result for each row.
func (r *Relay) send(ctx context.Context, a step.Publish) []error {
	topic, rows := a.To, a.Rows
	ctx, cancel := context.WithTimeout(ctx, r.cfg.PublishTimeout)
	defer cancel()
	results := make([]error, len(rows))
	msgs, at := make([]*message.Message, 0, len(rows)), make([]int, 0, len(rows))
	var bad map[string]bool
	for i, e := range rows {
		msg, err := r.messageOf(ctx, e)
		switch {
		case e.Key != "" && bad[e.Key]:
			results[i] = transport.ErrNotSent
		case err != nil:
			if bad == nil {
				bad = map[string]bool{}
			}
			results[i], bad[e.Key] = err, true
		default:
			msgs, at = append(msgs, msg), append(at, i)
		}
	}
	if len(msgs) == 0 {
		return results
	}
	ctx, end := r.observer.span(ctx, topic, msgs)
	if !a.InTime(time.Now()) { // checked again: the process may have been suspended since the batch was chosen
		results = repeat(step.ErrLeaseOver, len(rows))
		end(results)
		return results
	}
	published := r.publishBatch(ctx, topic, msgs)
	end(published)
	for i, err := range published {
		results[at[i]] = err
	}
	return results
}

// publishBatch sends the messages in one call if the publisher supports that, else one by one. A panic of the publisher counts as
// a failure of the messages.
func (r *Relay) publishBatch(ctx context.Context, topic string, msgs []*message.Message) (results []error) {
	defer func() {
		if p := recover(); p != nil {
			r.cfg.Logger.ErrorContext(ctx, "the publisher panicked", "topic", topic, "events", len(msgs), "panic", p, "stack", string(debug.Stack()))
			results = r.afterPanic(ctx, topic, msgs, fmt.Errorf("publisher %T panicked: %v", r.publisher, p))
		}
	}()
	if b, ok := r.publisher.(transport.BatchPublisher); ok {
		if results := b.PublishBatch(ctx, topic, msgs); len(results) == len(msgs) {
			return results
		}
		return repeat(fmt.Errorf("publisher %T did not return one result per message", b), len(msgs))
	}
	results = make([]error, len(msgs))
	failed := map[string]bool{}
	for i, m := range msgs {
		key := transport.Key(m)
		switch {
		case ctx.Err() != nil:
			results[i] = ctx.Err()
		case key != "" && failed[key]:
			results[i] = transport.ErrNotSent
		default:
			results[i] = r.publisher.Publish(topic, m)
			failed[key] = results[i] != nil
		}
	}
	return results
}

// afterPanic sends each message again, alone, to find the one that makes the publisher panic. Some may have been sent before.
func (r *Relay) afterPanic(ctx context.Context, topic string, msgs []*message.Message, err error) []error {
	if len(msgs) == 1 {
		return []error{fmt.Errorf("%w: %w", transport.ErrRejected, err)}
	}
	results, failed := make([]error, len(msgs)), map[string]bool{}
	for i, m := range msgs {
		key := transport.Key(m)
		if key != "" && failed[key] {
			results[i] = transport.ErrNotSent
			continue
		}
		results[i] = r.publishBatch(ctx, topic, msgs[i:i+1])[0]
		failed[key] = results[i] != nil
	}
	return results
}

func repeat(err error, n int) []error { return slices.Repeat([]error{err}, n) }

func (r *Relay) messageOf(ctx context.Context, e *step.Row) (*message.Message, error) {
	m := message.NewMessageWithContext(ctx, e.EventID, e.Payload)
	if e.Headers != nil {
		if err := json.Unmarshal(e.Headers, &m.Metadata); err != nil {
			return nil, fmt.Errorf("headers of event %s: %w: %w", e.EventID, transport.ErrRejected, err)
		}
	}
	if m.Metadata == nil { // the stored headers are JSON null
		m.Metadata = message.Metadata{}
	}
	transport.SetKey(m, e.Key)
	return cloudheader.For(r.cfg.Broker, m), nil
}
