package relay

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

const (
	// maxTopicStates bounds how many topics a relay reports, and maxTopicError the bytes of their errors.
	maxTopicStates, maxTopicError = 100, 500
)

// topicStates tells why events of topics wait, those first that are paused: a discard waits until it is told of them.
func (c *Core) topicStates(now time.Time) (states []step.TopicState) {
	for _, name := range slices.Sorted(maps.Keys(c.topics)) {
		if s := c.topicState(c.topics[name], now); s.State != "" {
			states = append(states, s)
		}
	}
	urgent := []string{step.TopicPaused, step.TopicFailing, step.TopicSlow}
	slices.SortStableFunc(states, func(a, b step.TopicState) int {
		return cmp.Compare(slices.Index(urgent, a.State), slices.Index(urgent, b.State))
	})
	return states[:min(len(states), maxTopicStates)]
}

func (c *Core) topicState(t *topic, now time.Time) step.TopicState {
	s := step.TopicState{Topic: t.name}
	var next, slowSince time.Time
	inFlight, waiting := false, false
	for _, sh := range c.order {
		q := sh.queues[t.name]
		if q == nil {
			continue
		}
		inFlight = inFlight || q.busy() || q.unsaved > 0
		waiting = waiting || q.held > 0 || len(q.failed)+len(q.retries) > 0 || q.deferred.Any()
		if q.until.After(now) {
			next = earliest(next, q.until)
		}
		if q.slow(now) && (len(q.ready) > 0 || q.deferred.Any()) {
			slowSince = earliest(slowSince, cmp.Or(q.slowSince, q.since))
		}
	}
	for _, sh := range c.ended {
		q := sh.queues[t.name]
		inFlight = inFlight || q != nil && q.busy()
	}
	if t.until.After(now) {
		next = t.until
	}
	switch {
	case t.paused != 0 && !inFlight:
		s.State, s.Pause = step.TopicPaused, t.paused
	case t.paused != 0:
	case !t.failing.IsZero() && waiting:
		s.State, s.For, s.Next = step.TopicFailing, now.Sub(t.failing), max(next.Sub(now), 0)
		if t.err != nil {
			text := t.err.Error()
			s.Error = text[:min(len(text), maxTopicError)]
		}
	case !slowSince.IsZero():
		s.State, s.For = step.TopicSlow, now.Sub(slowSince)
	}
	return s
}
