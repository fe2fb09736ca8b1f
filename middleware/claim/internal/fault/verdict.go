package fault

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/retry"
)

// ContendedDelay is when a contended message comes back: long enough to be no hot loop, short beside the time in which
// a crashed holder's transaction is noticed.
const ContendedDelay = 250 * time.Millisecond

// Policy is what a consumer's configuration says where no rule does.
type Policy struct {
	MaxAttempts int
	Backoff     func(attempt int) time.Duration
}

// Wait is how long an event waits that has failed so often.
func (p Policy) Wait(rule retry.Rule, attempts int) time.Duration {
	if rule.Backoff == 0 {
		d := max(p.Backoff(attempts), 0)
		if rule.MaxBackoff > 0 {
			d = min(d, rule.MaxBackoff)
		}
		return d
	}
	rule.MaxBackoff = cmp.Or(rule.MaxBackoff, max(rule.Backoff, lastBackoff))
	return Jitter(rule.Wait(attempts))
}

// Ruled is a handler's fault as the rules for its error say. The first policy that has a rule for it decides.
func (f Fault) Ruled(topic string, err error, policies ...retry.Policy) Fault {
	if !f.Counted || f.Reason == ReasonClock {
		return f
	}
	for _, p := range policies {
		rule, ok := p.Find(topic, err)
		switch {
		case !ok:
			continue
		case rule.Ignore:
			f.Ignored = true
		case rule.Dead:
			f.Hopeless, f.Reason = true, ReasonPermanent
		default:
			f.Rule = rule
		}
		return f
	}
	return f
}

// Verdict decides, after so many attempts before this one. back tells that events come back from the table: the broker
// need not keep them.
func (f Fault) Verdict(attempts int, back bool, p Policy) store.Verdict {
	v := store.Verdict{State: store.StateNacked, Reason: f.Reason, Attempts: attempts}
	most := cmp.Or(f.Rule.MaxAttempts, p.MaxAttempts)
	if f.Doubtful && v.Attempts+1 >= most {
		f.Counted, v.Reason = false, ReasonOutage
		f.After = p.Wait(f.Rule, v.Attempts+1)
	}
	if f.Counted {
		v.Attempts++
	}
	switch {
	case f.Ignored:
		v.State, v.Reason = store.StateIgnored, ReasonIgnored
		return v
	case f.Hopeless:
		v.State = store.StateDead
		return v
	case f.Counted && v.Attempts >= most:
		v.State = store.StateDead
		if f.Reason != ReasonClock {
			v.Reason = ReasonAttempts
		}
		return v
	case back && f.Reason != ReasonClock: // from the table it would run
		v.State = store.StateRetrying
	}
	v.Delay = max(f.After, ContendedDelay) // nothing else bounds how often
	if f.Counted {
		v.Delay = p.Wait(f.Rule, v.Attempts)
	}
	return v
}

const (
	firstBackoff = time.Second
	lastBackoff  = time.Minute
)

// Backoff is the default of Policy.Backoff.
func Backoff(attempt int) time.Duration {
	return Jitter(min(firstBackoff<<min(max(attempt-1, 0), 10), lastBackoff))
}

// Jitter takes away up to a quarter, so that what failed together does not come back together.
func Jitter(d time.Duration) time.Duration { return d - rand.N(d/4+1) }
