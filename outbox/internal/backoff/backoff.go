// Package backoff decides how long a relay waits before it tries again, without I/O and without a clock.
package backoff

import "time"

const (
	// First is the wait after the first failure of most actions.
	First = 100 * time.Millisecond
	// Most is their longest one.
	Most = 5 * time.Second
	// MostOfTopic is that of a topic, and shorter: it decides how soon an outage's end is noticed.
	MostOfTopic = time.Second
)

// Backoff is the wait after failures that followed one another. The zero value is that of something that has not failed.
type Backoff struct {
	Wait  time.Duration // after the last failure, without jitter
	Until time.Time
}

// Failed notes a failure, and returns how long to wait: twice as long as after the one before, from first up to most.
func (b *Backoff) Failed(first, most time.Duration, jitter func(time.Duration) time.Duration, now time.Time) time.Duration {
	b.Wait = min(max(2*b.Wait, first), most)
	d := jitter(b.Wait)
	b.Until = now.Add(d)
	return d
}

// OK notes a success.
func (b *Backoff) OK() { *b = Backoff{} }

// Earliest is the earlier one of two times, of which zero is none.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
