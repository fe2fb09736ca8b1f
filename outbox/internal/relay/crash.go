package relay

import (
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// accuse sets an event aside instead of sending it, if too many relays ended while they sent it. It reports whether it did.
func (s *shard) accuse(q *queue, e *step.Event) bool {
	deaths, accused := s.guard.Accuses(e.EventID, false)
	if !accused {
		return false
	}
	s.core.report(step.Report{Kind: step.ReportAccused, Shard: s.Shard, Topic: q.topic.Name, Event: e, Count: deaths})
	k := keyOf(e)
	k.pending--
	s.fail(k, step.Aside{Event: e, State: step.Retrying, Reason: step.ReasonCrash, Attempts: deaths, RetryIn: s.core.cfg.Jitter(s.core.cfg.CrashPause)})
	s.divert(q)
	return true
}

// accuseFailed does the same for the first failed event of a topic. The event is dead if it was set aside before.
func (s *shard) accuseFailed(q *queue) bool {
	first := q.failed[0][0]
	deaths, accused := s.guard.Accuses(first.EventID, first.Crash)
	if !accused {
		return false
	}
	q.failed = q.failed[1:]
	s.core.report(step.Report{Kind: step.ReportAccused, Shard: s.Shard, Topic: q.topic.Name, Count: deaths})
	again := step.Again{ID: first.ID, State: step.Retrying, Reason: step.ReasonCrash, Attempts: first.Attempts + deaths, RetryIn: s.core.cfg.Jitter(s.core.cfg.CrashPause)}
	if first.Crash {
		again.State, again.RetryIn = step.Dead, 0
	}
	s.settles = append(s.settles, settlement{
		SettleFailed: step.SettleFailed{Ref: s.Ref, Keys: []string{first.Key}, Again: []step.Again{again}}, heads: []int64{first.ID}, queue: q,
	})
	return true
}

// suspected returns the queue in which the suspect is ready, and moves the suspect to the front there.
func (s *shard) suspected(now time.Time) *queue {
	suspect := s.guard.Suspect()
	if suspect == "" {
		return nil
	}
	for _, q := range s.order {
		if q.busy() || q.stuck(now) {
			continue
		}
		if i := slices.IndexFunc(q.ready, func(e *step.Event) bool { return e.EventID == suspect }); i >= 0 {
			if name := q.ready[i].Key; name != "" { // the earlier events of its key go first
				i = slices.IndexFunc(q.ready, func(e *step.Event) bool { return e.Key == name })
			}
			first := q.ready[i]
			q.ready = slices.Concat([]*step.Event{first}, q.ready[:i], q.ready[i+1:])
			return q
		}
	}
	return nil
}

// isNoted reports whether the event is the one that is sent alone.
func (c *Core) isNoted(s *shard, eventID string) bool { return c.noted == s && c.notedID == eventID }

// survived records that the relay still runs after it has sent an event alone.
func (s *shard) survived(eventID string) {
	s.core.noted = nil
	s.guard.Survived(eventID)
}

// getsOn clears the shard's recorded deaths, because no event of the shard ends its relay.
func (c *Core) getsOn(s *shard) {
	s.guard.Clear()
	c.do(step.ClearSuspect{Ref: s.Ref})
}
