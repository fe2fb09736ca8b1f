package claim

import (
	"math/rand/v2"
	"time"
)

// The states of claim_failed.
const (
	stateFailing = "failing"
	stateWaiting = "waiting"
	stateParked  = "parked"
	stateDead    = "dead"
)

// verdict is what becomes of an event.
type verdict struct {
	state    string // "": it is settled already, and nothing is to be kept
	reason   string
	attempts int
	delay    time.Duration // until it comes back
}

// acks reports whether the broker may forget the event, because it is kept here.
func (v verdict) acks() bool { return v.state != stateFailing }

// verdict decides, after so many attempts before this one. back tells that events come back from the table: the broker
// need not keep them.
func (f fault) verdict(attempts int, back bool, cfg Config) verdict {
	v := verdict{state: stateFailing, reason: f.reason, attempts: attempts}
	if f.counted {
		v.attempts++
	}
	switch {
	case f.hopeless:
		v.state = stateDead
		return v
	case f.counted && v.attempts >= cfg.MaxAttempts:
		v.state = stateDead
		if f.reason != reasonClock {
			v.reason = reasonAttempts
		}
		return v
	case back && f.reason != reasonClock: // from the table it would run
		v.state = stateWaiting
	}
	v.delay = max(f.after, contendedDelay) // nothing else bounds how often
	if f.counted {
		v.delay = max(cfg.Backoff(v.attempts), 0)
	}
	return v
}

const (
	firstBackoff = time.Second
	lastBackoff  = time.Minute
)

// backoff is the default of Config.Backoff: the random part keeps events that failed together from coming back together.
func backoff(attempt int) time.Duration {
	d := min(firstBackoff<<min(max(attempt-1, 0), 10), lastBackoff)
	return d - rand.N(d/4)
}
