package pubsub

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// topicPublisher publishes to one topic, and keeps the order of each key over failures.
//
// Google's client sends the requests of one key one after another, and after an error refuses the key until it is
// resumed. Resuming while messages of the key are still queued in the client would let them overtake the one that
// failed, so a failed key is resumed when its last message under way has a result.
type topicPublisher struct {
	client  *pubsub.Publisher
	running sync.WaitGroup // calls of publish, and goroutines that wait for results whose caller has gone

	mu   sync.Mutex
	keys map[string]*keyState // those with messages under way
}

type keyState struct {
	underWay int
	failed   bool
}

// publish hands all messages to the client, then waits for all results and stores each at its message's place.
func (t *topicPublisher) publish(ctx context.Context, msgs []*message.Message, results []error) {
	pending := make([]*pubsub.PublishResult, len(msgs))
	failed := map[string]bool{} // keys that failed in this call
	for i, msg := range msgs {
		key := transport.Key(msg)
		if failed[key] {
			results[i] = transport.ErrNotSent
			continue
		}
		if err := check(msg); err != nil {
			results[i] = err
			failed[key] = key != ""
			continue
		}
		if !t.begin(key) {
			results[i] = transport.ErrNotSent
			failed[key] = true
			continue
		}
		pending[i] = t.client.Publish(ctx, marshal(msg))
	}
	for i, result := range pending {
		if result == nil {
			continue
		}
		select {
		case <-result.Ready():
		case <-ctx.Done():
			t.abandon(ctx, msgs[i:], pending[i:], results[i:])
			return
		}
		key := transport.Key(msgs[i])
		results[i] = t.result(result, failed[key])
		failed[key] = key != "" && (failed[key] || results[i] != nil)
		t.end(key, results[i] != nil)
	}
}

// result maps the client's result. Of a request that failed as a whole, the key's first message keeps the error.
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
		// Within Limits, but not together with what the encoding and the topic's name add to the request.
		return fmt.Errorf("%w: a publish request with this message exceeds %.0f bytes", transport.ErrLimit, pubsub.MaxPublishRequestBytes)
	}
	return err
}

// abandon gives what has no result yet the context's error, and goes on watching it: its keys may be resumed only when
// nothing of theirs is under way.
func (t *topicPublisher) abandon(ctx context.Context, msgs []*message.Message, pending []*pubsub.PublishResult, results []error) {
	keys := make([]string, len(pending))
	for i, result := range pending {
		if result == nil {
			continue
		}
		results[i] = ctx.Err()
		keys[i] = transport.Key(msgs[i])
	}
	t.running.Go(func() {
		for i, result := range pending {
			if result == nil {
				continue
			}
			_, err := result.Get(context.Background()) // bounded by the client's publish timeout
			t.end(keys[i], err != nil)
		}
	})
}

// begin notes that a message of the key is under way, or tells that the key has failed and is not yet resumed.
func (t *topicPublisher) begin(key string) bool {
	if key == "" {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	state, ok := t.keys[key]
	if !ok {
		state = &keyState{}
		t.keys[key] = state
	}
	if state.failed {
		return false
	}
	state.underWay++
	return true
}

// end notes a message's result, and resumes a failed key after its last one.
func (t *topicPublisher) end(key string, failed bool) {
	if key == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.keys[key]
	state.failed = state.failed || failed
	state.underWay--
	if state.underWay > 0 {
		return
	}
	delete(t.keys, key)
	if state.failed {
		t.client.ResumePublish(key)
	}
}
