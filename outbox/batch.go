package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/cloudheader"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/transport"
)

// send publishes rows of one topic in order. It returns one result for each row, and logs one panic of the publisher.
func (r *Relay) send(ctx context.Context, a step.Publish, logged *sync.Once) []error {
	topic, rows := a.To, a.Rows
	ctx, cancel := context.WithTimeout(ctx, r.cfg.PublishTimeout)
	defer cancel()
	results := make([]error, len(rows))
	msgs, at := make([]*message.Message, 0, len(rows)), make([]int, 0, len(rows))
	a.Rows = make([]*step.Row, 0, len(rows))
	bad := map[string]bool{}
	for i, e := range rows {
		msg, err := r.messageOf(ctx, e)
		switch {
		case e.Key != "" && bad[e.Key]:
			results[i] = transport.ErrNotSent
		case err != nil:
			results[i], bad[e.Key] = err, true
		default:
			msgs, at, a.Rows = append(msgs, msg), append(at, i), append(a.Rows, e)
		}
	}
	if len(msgs) == 0 {
		return results
	}
	ctx, end := r.observer.Span(ctx, topic, msgs)
	published := r.publishBatch(ctx, a, msgs, logged)
	end(published)
	for i, err := range published {
		results[at[i]] = err
	}
	return results
}

// publishBatch sends the messages of a's rows in one call if the publisher supports that, else one by one. A panic of the publisher
// counts as a failure of the messages.
func (r *Relay) publishBatch(ctx context.Context, a step.Publish, msgs []*message.Message, logged *sync.Once) (results []error) {
	defer func() {
		if p := recover(); p != nil {
			results = r.afterPanic(ctx, a, logged, r.panicked(ctx, logged, p, a.To, len(msgs)))
		}
	}()
	if !a.InTime(time.Now()) { // checked again: the process may have been suspended since the batch was chosen
		return repeat(step.ErrLeaseOver, len(msgs))
	}
	if b, ok := r.publisher.(transport.BatchPublisher); ok {
		if results := b.PublishBatch(ctx, a.To, msgs); len(results) == len(msgs) {
			return results
		}
		return repeat(fmt.Errorf("publisher %T did not return one result per message", b), len(msgs))
	}
	return oneByOne(a.Rows, func(i int) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !a.InTime(time.Now()): // as before a batch
			return step.ErrLeaseOver
		}
		return r.publisher.Publish(a.To, msgs[i])
	})
}

// afterPanic sends each row again, alone, because one may make the publisher panic. A row that panics alone fails with the error: the
// publisher may panic whatever it is given. Some may have been sent before. The messages are made again, because the publisher may have
// changed them.
func (r *Relay) afterPanic(ctx context.Context, a step.Publish, logged *sync.Once, err error) []error {
	rows := a.Rows
	if len(rows) == 1 {
		return []error{err}
	}
	return oneByOne(rows, func(i int) error {
		a.Rows = rows[i : i+1]
		return r.send(ctx, a, logged)[0]
	})
}

// errPanicked does not say whether the event or the publisher is at fault.
var errPanicked = errors.New("the publisher panicked")

// panicked returns the error of a panic of the publisher, and logs the panic unless one of the batch was logged before.
func (r *Relay) panicked(ctx context.Context, logged *sync.Once, p any, topic string, events int) error {
	logged.Do(func() {
		r.cfg.Logger.ErrorContext(ctx, "the publisher panicked", "topic", topic, "events", events, "panic", p, "stack", string(debug.Stack()))
	})
	return fmt.Errorf("%w: %T: %v", errPanicked, r.publisher, p)
}

// oneByOne sends rows in order. It does not send what follows a row of its key that was not sent.
func oneByOne(rows []*step.Row, send func(i int) error) []error {
	results, failed := make([]error, len(rows)), map[string]bool{}
	for i, e := range rows {
		if results[i] = transport.ErrNotSent; e.Key == "" || !failed[e.Key] {
			results[i] = send(i)
		}
		failed[e.Key] = results[i] != nil
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
