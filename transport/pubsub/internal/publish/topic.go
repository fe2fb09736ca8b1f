package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/internal/tracing"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// maxGivenUp is how many messages without a key may be in flight after their callers gave up, before new ones are refused.
const maxGivenUp = 1000

// topicPublisher publishes to one topic and keeps the order of each key across failures.
//
// Google's client sends the requests of one key one after another. After an error it refuses the key until the key is resumed. Resuming
// while messages of the key are still queued in the client would let them overtake the failed one, so a failed key is resumed when its
// last message in flight has a result.
//
// A caller may give up before the client does, and retry, as a relay does throughout an outage. Each retry would leave its messages in
// the client, and all of them would be sent in the end. So a key accepts no message behind one that was given up, until that one has its
// result, and messages without a key are refused when too many were given up.
type topicPublisher struct {
	client     *pubsub.Publisher
	propagator propagation.TextMapPropagator
	running    sync.WaitGroup // calls of publish and watch

	givenUp atomic.Int64 // messages without a key

	mu   sync.Mutex
	keys map[string]*keyState // those with messages in flight
}

type keyState struct {
	underWay int
	stopped  bool // a message has failed or was given up
}

// publish passes all messages to the client, waits until each has a result, or until its context or ctx has ended, and stores the
// results.
func (t *topicPublisher) publish(ctx context.Context, msgs []*message.Message, results []error) {
	t.await(ctx, msgs, t.send(ctx, msgs, results), results)
}

// await waits for the pending results. A result that comes after ctx has ended, when an earlier message of its key was given up, comes too
// late: nobody is to learn that a message was acknowledged and an earlier one perhaps not.
func (t *topicPublisher) await(ctx context.Context, msgs []*message.Message, pending []*pubsub.PublishResult, results []error) {
	failed, late := map[string]bool{}, map[string]bool{} // keys
	var abandoned []sent
	for i, result := range pending {
		if result == nil {
			continue
		}
		key := transport.Key(msgs[i])
		err := ready(ctx, msgs[i].Context(), result)
		if late[key] {
			err = ctx.Err()
		}
		if err != nil {
			results[i] = err
			abandoned = append(abandoned, sent{key, result})
			late[key] = key != "" && ctx.Err() != nil
		} else {
			results[i] = t.result(result, failed[key])
			t.end(key, results[i] != nil)
		}
		if key != "" && results[i] != nil {
			failed[key] = true
		}
	}
	if len(abandoned) > 0 {
		t.abandon(abandoned)
	}
}

// send returns the client's pending result of each message. A message that is not sent has none; its result is stored in results.
func (t *topicPublisher) send(ctx context.Context, msgs []*message.Message, results []error) []*pubsub.PublishResult {
	pending := make([]*pubsub.PublishResult, len(msgs))
	failed := map[string]bool{}
	for i, msg := range msgs {
		key := transport.Key(msg)
		if failed[key] {
			results[i] = transport.ErrNotSent
			continue
		}
		if err := cmp.Or(msg.Context().Err(), wire.Check(msg)); err != nil {
			results[i] = err
			failed[key] = key != ""
			continue
		}
		if err := t.begin(key); err != nil {
			results[i] = err
			failed[key] = key != ""
			continue
		}
		pending[i] = t.client.Publish(t.marshal(ctx, msg)) // the client uses the context only for its trace
	}
	return pending
}

// marshal returns the message with its trace, and the context that has the trace.
func (t *topicPublisher) marshal(ctx context.Context, msg *message.Message) (context.Context, *pubsub.Message) {
	if trace.SpanContextFromContext(msg.Context()).IsValid() {
		ctx = msg.Context()
	}
	m := wire.Marshal(msg)
	if len(m.Attributes) < wire.MaxAttributes-2 { // traceparent and tracestate
		tracing.Inject(ctx, t.propagator, m.Attributes)
	}
	return ctx, m
}

func (t *topicPublisher) forward(ctx context.Context, m *pubsub.Message) error {
	key := m.OrderingKey
	if err := t.begin(key); err != nil {
		return err
	}
	result := t.client.Publish(ctx, &pubsub.Message{Data: m.Data, Attributes: m.Attributes, OrderingKey: key})
	if err := ready(ctx, ctx, result); err != nil {
		t.abandon([]sent{{key, result}})
		return err
	}
	err := t.result(result, false)
	t.end(key, err != nil)
	return err
}

// ready returns nil if the result is ready, otherwise the error of the context that ended first. A result that is ready counts, even if
// it came late.
func ready(call, msg context.Context, result *pubsub.PublishResult) error {
	var ended context.Context
	select {
	case <-result.Ready():
		return nil
	case <-call.Done():
		ended = call
	case <-msg.Done():
		ended = msg
	}
	select {
	case <-result.Ready():
		return nil
	default:
		return ended.Err()
	}
}

// result maps the client's result. If a whole request failed, the key's first message keeps the error.
func (t *topicPublisher) result(result *pubsub.PublishResult, keyFailed bool) error {
	_, err := result.Get(context.Background()) // it is ready
	var paused pubsub.ErrPublishingPaused
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pubsub.ErrPublisherStopped):
		return transport.ErrClosed
	case keyFailed, errors.As(err, &paused):
		return transport.ErrNotSent
	case errors.Is(err, pubsub.ErrOversizedMessage):
		// It is within Limits, but too large with the encoding's and the topic name's share of the request.
		return fmt.Errorf("%w: a publish request with this message exceeds %.0f bytes", transport.ErrLimit, pubsub.MaxPublishRequestBytes)
	case errors.Is(err, context.DeadlineExceeded):
		// The client's own context has ended; callers' contexts do not reach the client. The service's last error does not matter.
		return fmt.Errorf("%w: Google's client has tried for %s: %w", transport.ErrUnavailable, t.client.PublishSettings.Timeout, err)
	}
	return err
}

// sent is a message whose caller gave up before its result came.
type sent struct {
	key    string
	result *pubsub.PublishResult
}

// abandon stops the keys of messages that their callers gave up, and waits for their results in the background: a key may be resumed only
// when no message of it is in flight.
func (t *topicPublisher) abandon(abandoned []sent) {
	t.mu.Lock()
	for _, s := range abandoned {
		if s.key == "" {
			t.givenUp.Add(1)
		} else {
			t.keys[s.key].stopped = true
		}
	}
	t.mu.Unlock()
	t.running.Go(func() {
		for _, s := range abandoned {
			_, err := s.result.Get(context.Background()) // bounded by the client's publish timeout
			if s.key == "" {
				t.givenUp.Add(-1)
			}
			t.end(s.key, err != nil)
		}
	})
}

// begin records that a message of the key is in flight, or returns why it must not be sent now.
func (t *topicPublisher) begin(key string) error {
	if key == "" {
		if n := t.givenUp.Load(); n >= maxGivenUp {
			return fmt.Errorf("%w: %d messages that were given up are still under way", transport.ErrUnavailable, n)
		}
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	state, ok := t.keys[key]
	if !ok {
		state = &keyState{}
		t.keys[key] = state
	}
	if state.stopped {
		return transport.ErrNotSent
	}
	state.underWay++
	return nil
}

// end records a message's result, and resumes a stopped key after its last one.
func (t *topicPublisher) end(key string, failed bool) {
	if key == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.keys[key]
	state.stopped = state.stopped || failed
	state.underWay--
	if state.underWay > 0 {
		return
	}
	delete(t.keys, key)
	if state.stopped {
		t.client.ResumePublish(key)
	}
}
