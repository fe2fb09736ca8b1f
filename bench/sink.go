package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// sink is a transport.BatchPublisher that sends nothing, and notes the IDs so that a run can be checked afterwards. It
// is safe for concurrent use.
type sink struct {
	want int
	all  func() // called once, when that many events have come

	mu  sync.Mutex
	ids []string
}

func newSink(want int, all func()) *sink {
	return &sink{want: want, all: all, ids: make([]string, 0, want)}
}

// PublishBatch acknowledges every message.
func (s *sink) PublishBatch(_ context.Context, _ string, msgs []*message.Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.ids)
	for _, msg := range msgs {
		s.ids = append(s.ids, msg.UUID)
	}
	if before < s.want && len(s.ids) >= s.want {
		s.all()
	}
	return make([]error, len(msgs))
}

// Publish acknowledges every message.
func (s *sink) Publish(topic string, msgs ...*message.Message) error {
	s.PublishBatch(context.Background(), topic, msgs)
	return nil
}

// Close does nothing.
func (s *sink) Close() error { return nil }

// check reports whether exactly the events came, each of them once.
func (s *sink) check(events []event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	distinct := make(map[string]struct{}, len(s.ids))
	for _, id := range s.ids {
		distinct[id] = struct{}{}
	}
	missing := 0
	for _, e := range events {
		if _, ok := distinct[e.id]; !ok {
			missing++
		}
	}
	if len(s.ids) != len(events) || len(distinct) != len(events) || missing > 0 {
		return fmt.Errorf("published %d events with %d IDs, of %d events %d are missing: want each event once",
			len(s.ids), len(distinct), len(events), missing)
	}
	return nil
}
