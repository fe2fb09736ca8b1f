package relay

import (
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// An event may end the process that sends it: a publisher that crashes or runs out of memory over it. Its successor would
// end too, and so on. After two relays ended while they held a shard, and nothing was deleted between, its events are sent
// one by one, in the whole relay one at a time. Each is noted durably before it is sent. An event that three relays had noted
// and were sending when they ended is set aside for a while, and is dead if one more relay ends while it sends it then. The
// pause tells it from an event that was being sent by chance when something else ended the relays.

const (
	carefulDeaths = 2
	accusedDeaths = 3
)

// beCareful makes a new shard send its next events one by one when relays ended over it.
func (s *shard) beCareful() {
	if s.deaths < carefulDeaths && s.suspDeaths == 0 {
		return
	}
	s.careful = s.core.cfg.MaxInFlight
	s.core.report(step.Report{Kind: step.ReportCareful, Shard: s.Shard, Count: s.deaths})
}

// accuse sets an event aside instead of sending it, if too many relays ended while they sent it. It reports whether it did.
func (s *shard) accuse(q *queue, e *step.Event) bool {
	if e.EventID != s.suspect || s.suspDeaths < accusedDeaths {
		return false
	}
	s.core.report(step.Report{Kind: step.ReportAccused, Shard: s.Shard, Topic: q.topic.name, Event: e, Count: s.suspDeaths})
	k := keyOf(e)
	k.pending--
	s.fail(k, step.Aside{Event: e, State: step.Retrying, Reason: step.ReasonCrash, Attempts: s.suspDeaths, RetryIn: s.core.cfg.Jitter(s.core.cfg.CrashPause)})
	s.divert(q)
	s.forgetSuspect()
	return true
}

// suspected returns the queue in which the suspect is ready, and puts it before the others there. It goes first: the note of
// another event would wipe out how many relays ended over the suspect.
func (s *shard) suspected(now time.Time) *queue {
	if s.suspDeaths == 0 || s.careful == 0 {
		return nil
	}
	for _, q := range s.order {
		if q.busy() || q.stuck(now) {
			continue
		}
		if i := slices.IndexFunc(q.ready, func(e *step.Event) bool { return e.EventID == s.suspect }); i >= 0 {
			if name := q.ready[i].Key; name != "" { // behind earlier events of its key
				i = slices.IndexFunc(q.ready, func(e *step.Event) bool { return e.Key == name })
			}
			first := q.ready[i]
			q.ready = slices.Concat([]*step.Event{first}, q.ready[:i], q.ready[i+1:])
			return q
		}
	}
	return nil
}

func (s *shard) forgetSuspect() { s.suspect, s.suspDeaths = "", 0 }

// isNoted reports whether the event is the one that is sent alone.
func (c *Core) isNoted(s *shard, eventID string) bool { return c.noted == s && c.notedID == eventID }

// survived notes that the relay is still there after it sent an event alone.
func (s *shard) survived(eventID string) {
	s.core.noted = nil
	if s.suspect == eventID {
		s.forgetSuspect()
	}
}

// getsOn clears what is recorded for a shard, because nothing in it ends its relay.
func (c *Core) getsOn(s *shard) {
	s.deaths, s.careful = 0, 0
	s.forgetSuspect()
	c.do(step.ClearSuspect{Ref: s.Ref})
}
