// Package backoff says how long to wait before what has failed is tried again.
package backoff

import (
	"context"
	"time"
)

// Doubling is a wait that doubles with each failure.
type Doubling struct {
	Min time.Duration // after the first failure
	Max time.Duration
}

// Wait is how long to wait after that many failures in a row.
func (d Doubling) Wait(failures int) time.Duration {
	wait := d.Min
	for i := 1; i < failures && wait < d.Max; i++ {
		wait *= 2
	}
	return min(wait, d.Max)
}

// Sleep returns false when ctx ends before the wait is over.
func Sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Earlier returns the earlier of two times, of which the zero one is none.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
