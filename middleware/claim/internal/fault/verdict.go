package fault

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/retry"
)

// ContendedDelay is the redelivery delay of a contended message. It is long enough to avoid a hot loop, and short compared with the
// time until the server notices that a holder has crashed.
const ContendedDelay = 250 * time.Millisecond

// Policy is a consumer's configuration. A rule takes precedence.
type Policy struct {
	MaxAttempts int
	Backoff     func(attempt int) time.Duration
}

// Wait returns the wait after this number of failed attempts.
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

// Ruled applies the rules for the error to a handler's fault. The first policy with a matching rule decides.
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

// Verdict decides. attempts is the number of attempts before this one. back means that the table redelivers events, so the broker
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
	case back && f.Reason != ReasonClock: // the table would retry it without the check of its time
		v.State = store.StateRetrying
	}
	v.Delay = max(f.After, ContendedDelay) // this alone limits the rate of retries
	if f.Counted {
		v.Delay = p.Wait(f.Rule, v.Attempts)
	}
	return v
}

const (
	firstBackoff = time.Second
	lastBackoff  = time.Minute
)

// Backoff is the default of Policy.Backoff: from 1 s, doubled up to 1 min.
func Backoff(attempt int) time.Duration {
	return Jitter(min(firstBackoff<<min(max(attempt-1, 0), 10), lastBackoff))
}

// Jitter subtracts up to a quarter at random, so that events that failed together are not retried together.
func Jitter(d time.Duration) time.Duration { return d - rand.N(d/4+1) }
