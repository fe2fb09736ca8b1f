package outbox_test

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

var errRefused = errors.New("refused")

// recorder is a broker that remembers what it got. Payloads are what the tests tell events by.
type recorder struct {
	mu         sync.Mutex
	byKey      map[string][]string // payloads in order of arrival
	refuse     func(payload string) bool
	outOfReach func(payload string) bool
	hold       chan struct{} // when not nil, publishing waits until it is closed
	waiting    chan struct{} // gets a signal when publishing waits
	batches    int
	last       *message.Message
}

func newRecorder() *recorder {
	return &recorder{byKey: map[string][]string{}, waiting: make(chan struct{}, 1000)}
}

// Publish takes one message after another, as a publisher without batches does.
func (r *recorder) Publish(_ string, msgs ...*message.Message) error {
	r.mu.Lock()
	hold := r.hold
	r.mu.Unlock()
	if hold != nil {
		r.waiting <- struct{}{}
		<-hold
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range msgs {
		if r.refuse != nil && r.refuse(string(m.Payload)) {
			return errRefused
		}
		r.last = m
		r.byKey[transport.Key(m)] = append(r.byKey[transport.Key(m)], string(m.Payload))
	}
	return nil
}

func (r *recorder) Close() error { return nil }

func (r *recorder) of(key string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.byKey[key])
}

func (r *recorder) count() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.byKey {
		n += len(p)
	}
	return n
}

func (r *recorder) refuseAll(f func(payload string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = f
}

func (r *recorder) leaveOut(f func(payload string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outOfReach = f
}

// batchRecorder also takes batches.
type batchRecorder struct{ *recorder }

func (r batchRecorder) PublishBatch(_ context.Context, topic string, msgs []*message.Message) []error {
	r.mu.Lock()
	r.batches++
	r.mu.Unlock()
	errs, failed := make([]error, len(msgs)), map[string]bool{}
	for i, m := range msgs {
		if key := transport.Key(m); key != "" && failed[key] {
			errs[i] = transport.ErrNotSent
			continue
		}
		errs[i] = r.Publish(topic, m)
		failed[transport.Key(m)] = errs[i] != nil
	}
	return errs
}

// publishers are both kinds that a relay works with.
var publishers = map[string]func(*recorder) message.Publisher{
	"message.Publisher": func(r *recorder) message.Publisher { return r },
	"BatchPublisher":    func(r *recorder) message.Publisher { return batchRecorder{r} },
}
