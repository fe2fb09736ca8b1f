// Package backoff decides how long a relay waits before it tries again, without I/O and without a clock.
package backoff

import "time"

const (
	// First is the wait after the first failure of most actions.
	First = 100 * time.Millisecond
	// Most is the longest wait of most actions.
	Most = 5 * time.Second
	// MostOfTopic is the longest wait for a topic. It is shorter, because it decides how soon a relay notices the end of an outage.
	MostOfTopic = time.Second
)

// Backoff is the wait after consecutive failures. The zero value has no failure.
type Backoff struct {
	Wait  time.Duration // after the last failure, without jitter
	Until time.Time
}

// Failed records a failure and returns how long to wait: twice the previous wait, but at least first and at most most.
func (b *Backoff) Failed(first, most time.Duration, jitter func(time.Duration) time.Duration, now time.Time) time.Duration {
	b.Wait = min(max(2*b.Wait, first), most)
	d := jitter(b.Wait)
	b.Until = now.Add(d)
	return d
}

// OK records a success.
func (b *Backoff) OK() { *b = Backoff{} }

// Earliest returns the earlier of two times. A zero time means none.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
