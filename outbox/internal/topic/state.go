package topic

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// maxStates bounds how many topics a relay reports besides the paused ones. maxError bounds the bytes of an error.
const maxStates, maxError = 100, 500

// Use is the state of a topic's events in all shards of a relay.
type Use struct {
	InFlight  bool
	Waiting   bool
	Next      time.Time // when the next queue's backoff ends; zero: none is in backoff
	SlowSince time.Time // since when batches take long; zero: they do not
}

// States returns why events of topics wait. Paused topics are first, because a discard waits until the relay reports them.
func (s Set) States(use func(name string) Use, now time.Time) (states []step.TopicState) {
	most := maxStates
	for _, name := range slices.Sorted(maps.Keys(s)) {
		state := s[name].State(use(name), now)
		if state.State != "" {
			states = append(states, state)
		}
		if state.State == step.TopicPaused {
			most++
		}
	}
	urgent := []string{step.TopicPaused, step.TopicFailing, step.TopicSlow}
	slices.SortStableFunc(states, func(a, b step.TopicState) int {
		return cmp.Compare(slices.Index(urgent, a.State), slices.Index(urgent, b.State))
	})
	return states[:min(len(states), most)]
}

// State returns why events of the topic wait. Its State is "" if they do not.
func (t *Topic) State(u Use, now time.Time) step.TopicState {
	s := step.TopicState{Topic: t.Name}
	switch {
	case t.Paused != 0 && !u.InFlight:
		s.State, s.Pause = step.TopicPaused, t.Paused
	case t.Paused != 0:
	case !t.failing.IsZero() && u.Waiting:
		next := u.Next
		if t.retry.Until.After(now) {
			next = t.retry.Until
		}
		s.State, s.For, s.Next = step.TopicFailing, now.Sub(t.failing), max(next.Sub(now), 0)
		if t.err != nil {
			text := t.err.Error()
			s.Error = text[:min(len(text), maxError)]
		}
	case !u.SlowSince.IsZero():
		s.State, s.For = step.TopicSlow, now.Sub(u.SlowSince)
	}
	return s
}
