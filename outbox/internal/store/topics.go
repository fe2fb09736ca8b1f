package store

import (
	"encoding/json"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// topicState is a step.TopicState as it stands in outbox_relay.topics. Times are relative to outbox_relay.seen_at.
type topicState struct {
	Topic string `json:"topic"`
	State string `json:"state"`
	Pause int64  `json:"pause,omitempty"`
	For   int64  `json:"for_ms"`
	Next  *int64 `json:"next_ms,omitempty"`
	Error string `json:"error"`
}

func encodeTopics(states []step.TopicState) string {
	list := make([]topicState, len(states))
	for i, s := range states {
		list[i] = topicState{Topic: s.Topic, State: s.State, Pause: s.Pause, For: s.For.Milliseconds(), Error: printable(s.Error)}
		if next := s.Next.Milliseconds(); next > 0 {
			list[i].Next = &next
		}
	}
	text, _ := json.Marshal(list) // strings and numbers are no error
	return string(text)
}
