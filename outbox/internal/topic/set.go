package topic

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// An error of unknown meaning says nothing against an event if another event failed with the same error and was published later: a part
// of the broker was unavailable or overloaded. Events that are dead because of such an error are then retried. They keep their attempts,
// so that one that fails again is dead again.

const (
	// retryEvery is the shortest time between two such retries of a topic.
	retryEvery = time.Minute
	// maxReasons bounds how many errors of a topic are remembered until then.
	maxReasons = 10
	// MaxIdle is how many unused topics are remembered.
	MaxIdle = 1000
)

// Set holds the topics that a relay knows, by name.
type Set map[string]*Topic

// Of returns the topic with that name, and adds it if it is missing.
func (s Set) Of(name string) *Topic {
	t := s[name]
	if t == nil {
		t = &Topic{Name: name, To: name}
		s[name] = t
	}
	return t
}

// Forget drops unused topics if there are many.
func (s Set) Forget(used func() map[*Topic]bool) {
	if len(s) <= MaxIdle {
		return
	}
	in := used()
	maps.DeleteFunc(s, func(_ string, t *Topic) bool { return !in[t] && t.Paused == 0 && t.To == t.Name && !t.stands })
}

// Change is an operator's change of a topic.
type Change struct {
	*Topic
	Kind step.ReportKind // ReportPaused, ReportResumed or ReportRedirected
}

// Control applies the operators' settings and returns the changes. A topic that is not in controls has no settings.
func (s Set) Control(controls []step.Control) (changes []Change) {
	set := map[string]step.Control{}
	for _, x := range controls {
		set[x.Topic] = x
		s.Of(x.Topic)
	}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		t := s[name]
		if to := cmp.Or(set[name].To, name); to != t.To {
			// The redirect applies from the next batch on. A batch in flight is answered before the topic's next one is sent, so each key
			// keeps its order. Failures of the former topic say nothing about the new one.
			t.To, t.retry.Until = to, time.Time{}
			changes = append(changes, Change{t, step.ReportRedirected})
		}
		was := t.Paused
		t.Paused = cmp.Or(set[name].Paused, set[t.To].Paused)
		switch {
		case t.Paused != 0 && was == 0:
			changes = append(changes, Change{t, step.ReportPaused})
		case t.Paused == 0 && was != 0:
			changes = append(changes, Change{t, step.ReportResumed})
		}
	}
	return changes
}

// Standing returns the names of the topics of which no batch may be sent now.
func (s Set) Standing(now time.Time) (names []string) {
	for _, t := range s {
		if t.Stands(now) {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	return names
}

// RetryDead returns which dead events to retry because their errors have gone away, and when to call it again.
func (s Set) RetryDead(jitter func(time.Duration) time.Duration, now time.Time) (retries []step.RetryDead, at time.Time) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		switch t := s[name]; {
		case len(t.reasons) == 0 || t.retrying:
		case t.retryDead.After(now):
			at = backoff.Earliest(at, t.retryDead)
		default:
			t.retrying, t.retryDead = true, now.Add(jitter(retryEvery))
			retries = append(retries, step.RetryDead{Topic: name, Reasons: t.reasons})
			t.reasons = nil
		}
	}
	return retries, at
}

// DeadRetried handles the answer. After a failure, the retry is repeated after the returned time.
func (s Set) DeadRetried(in step.DeadRetried, now time.Time) (again time.Duration) {
	t := s.Of(in.Topic)
	t.retrying = false
	if in.Err != nil {
		for _, reason := range in.Reasons {
			t.Recovered(reason)
		}
	}
	return t.retryDead.Sub(now)
}
