package claim

import (
	"cmp"
	"math/rand/v2"
	"time"
)

// The states of claim_failed.
const (
	stateNacked   = "nacked"
	stateRetrying = "retrying"
	stateBlocked  = "blocked"
	stateDead     = "dead"

	stateIgnored = "ignored" // its row is gone
)

// verdict is what becomes of an event.
type verdict struct {
	state    string // "": it is settled already, and nothing is to be kept
	reason   string
	attempts int
	delay    time.Duration // until it comes back
}

// acks reports whether the broker may forget the event, because it is kept here.
func (v verdict) acks() bool { return v.state != stateNacked }

// verdict decides, after so many attempts before this one. back tells that events come back from the table: the broker
// need not keep them.
func (f fault) verdict(attempts int, back bool, cfg Config) verdict {
	v := verdict{state: stateNacked, reason: f.reason, attempts: attempts}
	most := cmp.Or(f.rule.MaxAttempts, cfg.MaxAttempts)
	if f.doubtful && v.attempts+1 >= most {
		f.counted, v.reason = false, reasonOutage
		f.after = cfg.wait(f.rule, v.attempts+1)
	}
	if f.counted {
		v.attempts++
	}
	switch {
	case f.ignored:
		v.state, v.reason = stateIgnored, reasonIgnored
		return v
	case f.hopeless:
		v.state = stateDead
		return v
	case f.counted && v.attempts >= most:
		v.state = stateDead
		if f.reason != reasonClock {
			v.reason = reasonAttempts
		}
		return v
	case back && f.reason != reasonClock: // from the table it would run
		v.state = stateRetrying
	}
	v.delay = max(f.after, contendedDelay) // nothing else bounds how often
	if f.counted {
		v.delay = cfg.wait(f.rule, v.attempts)
	}
	return v
}

const (
	firstBackoff = time.Second
	lastBackoff  = time.Minute
)

// backoff is the default of Config.Backoff.
func backoff(attempt int) time.Duration {
	return jitter(min(firstBackoff<<min(max(attempt-1, 0), 10), lastBackoff))
}

// jitter takes away up to a quarter, so that what failed together does not come back together.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/4+1) }
