package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// sink is a transport.BatchPublisher that sends nothing, and notes the IDs so that a run can be checked afterwards. It
// is safe for concurrent use.
type sink struct {
	want    int
	all     func()        // called once, when that many events have come
	request time.Duration // how long each call takes, like a broker's answer; calls do not wait for each other

	mu     sync.Mutex
	ids    []string
	first  time.Time // when the first event came
	last   time.Time // when the last event came
	closed bool      // the time box is over
	inBox  int       // how many had come by then
	atLast time.Time // when the last of these came
}

func newSink(want int, all func()) *sink {
	return &sink{want: want, all: all, ids: make([]string, 0, want)}
}

// PublishBatch acknowledges every message: one request.
func (s *sink) PublishBatch(ctx context.Context, _ string, msgs []*message.Message) []error {
	if s.request > 0 {
		select {
		case <-time.After(s.request):
		case <-ctx.Done():
			errs := make([]error, len(msgs))
			for i := range errs {
				errs[i] = ctx.Err()
			}
			return errs
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.ids)
	for _, msg := range msgs {
		s.ids = append(s.ids, msg.UUID)
	}
	s.came(before)
	return make([]error, len(msgs))
}

// note takes one event.
func (s *sink) note(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids = append(s.ids, id)
	s.came(len(s.ids) - 1)
}

// came is called with the lock held after each coming, with the number of events before it.
func (s *sink) came(before int) {
	s.last = time.Now()
	if before == 0 {
		s.first = s.last
	}
	if before < s.want && len(s.ids) >= s.want {
		s.all()
	}
}

// rate is that of the events after the first, until the last.
func (s *sink) rate() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(len(s.ids)-1) / s.last.Sub(s.first).Seconds()
}

// Publish acknowledges every message: one request, as Watermill's publishers for brokers make one of a call.
func (s *sink) Publish(topic string, msgs ...*message.Message) error {
	s.PublishBatch(context.Background(), topic, msgs)
	return nil
}

// Close does nothing.
func (s *sink) Close() error { return nil }

// closeBox notes how many events came in the time box.
func (s *sink) closeBox() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.inBox, s.atLast = true, len(s.ids), s.last
}

// boxed returns how many events came in the time box and when the last of them did, and whether the box is over.
func (s *sink) boxed() (n int, last time.Time, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inBox, s.atLast, s.closed
}

// count is how many events have come.
func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

// complete reports whether all events have come.
func (s *sink) complete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids) >= s.want
}

// check reports whether exactly the events came, each of them once.
func (s *sink) check(events []event) error {
	got, distinct, known := s.tally(events)
	if got != len(events) || distinct != len(events) || known != len(events) {
		return fmt.Errorf("published %d events with %d IDs, of %d events %d are missing: want each event once",
			got, distinct, len(events), len(events)-known)
	}
	return nil
}

// checkSome reports whether what came was of the events, each at most once, and not nothing.
func (s *sink) checkSome(events []event) error {
	got, distinct, known := s.tally(events)
	if got == 0 || got != distinct || got != known {
		return fmt.Errorf("published %d events with %d IDs in the time box, %d of them known: want some, each once", got, distinct, known)
	}
	return nil
}

// tally counts what came, its distinct IDs, and the events among these.
func (s *sink) tally(events []event) (got, distinct, known int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	came := make(map[string]struct{}, len(s.ids))
	for _, id := range s.ids {
		came[id] = struct{}{}
	}
	for _, e := range events {
		if _, ok := came[e.id]; ok {
			known++
		}
	}
	return len(s.ids), len(came), known
}
