package relay

import (
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
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

// isNoted reports whether the event is the one that is sent alone.
func (c *Core) isNoted(s *shard, eventID string) bool { return c.noted == s && c.notedID == eventID }

// survived records that the relay still runs after it has sent an event alone.
func (s *shard) survived(eventID string) {
	s.core.noted = nil
	s.guard.Survived(eventID)
}

// pass clears the shard's recorded deaths when enough has been published.
func (c *Core) pass(s *shard) {
	var oldest time.Time
	for _, q := range s.order {
		if q.busy() {
			oldest = backoff.Earliest(oldest, q.since)
		}
	}
	if s.guard.Passed(oldest) {
		c.getsOn(s)
	}
}

// getsOn clears the shard's recorded deaths, because no event of the shard ends its relay.
func (c *Core) getsOn(s *shard) {
	s.guard.Clear()
	c.do(step.ClearSuspect{Ref: s.Ref})
}
