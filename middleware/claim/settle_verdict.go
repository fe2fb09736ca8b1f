package claim

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
)

// verdict decides, after so many attempts before this one. back tells that events come back from the table: the broker
// need not keep them.
func (f fault) verdict(attempts int, back bool, cfg Config) store.Verdict {
	v := store.Verdict{State: store.StateNacked, Reason: f.reason, Attempts: attempts}
	most := cmp.Or(f.rule.MaxAttempts, cfg.MaxAttempts)
	if f.doubtful && v.Attempts+1 >= most {
		f.counted, v.Reason = false, reasonOutage
		f.after = cfg.wait(f.rule, v.Attempts+1)
	}
	if f.counted {
		v.Attempts++
	}
	switch {
	case f.ignored:
		v.State, v.Reason = store.StateIgnored, reasonIgnored
		return v
	case f.hopeless:
		v.State = store.StateDead
		return v
	case f.counted && v.Attempts >= most:
		v.State = store.StateDead
		if f.reason != reasonClock {
			v.Reason = reasonAttempts
		}
		return v
	case back && f.reason != reasonClock: // from the table it would run
		v.State = store.StateRetrying
	}
	v.Delay = max(f.after, contendedDelay) // nothing else bounds how often
	if f.counted {
		v.Delay = cfg.wait(f.rule, v.Attempts)
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
