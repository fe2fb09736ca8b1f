package store

import (
	"context"
	"encoding/json"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// topicState is a step.TopicState as it is stored in outbox_relay.topics. Times are relative to outbox_relay.seen_at.
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
	text, _ := json.Marshal(list) // strings and numbers cannot fail
	return string(text)
}

// Counted is the results of the events of a topic that a relay sent.
type Counted struct{ Published, Failed int64 }

// Plus implements tally.Amount.
func (c Counted) Plus(other Counted) Counted {
	return Counted{c.Published + other.Published, c.Failed + other.Failed}
}

// maxName is the longest topic name that the journal's index takes. No broker has longer ones.
const maxName = 255

// Journal adds the relay's counts to the journal, by topic.
func (r *Relay) Journal(ctx context.Context, counted map[string]Counted) error {
	var topics []string
	var published, failed []int64
	for topic, n := range counted {
		if len(topic) > maxName {
			topic = ""
		}
		topics, published, failed = append(topics, topic), append(published, n.Published), append(failed, n.Failed)
	}
	return r.transact(ctx, statement{sql: r.sql.journal, args: []argument{id(r.id), texts(topics), int8s(published), int8s(failed)}})
}
