// Package backoff decides how long to wait before a failed operation is retried.
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

// Wait returns how long to wait after that many failures in a row.
func (d Doubling) Wait(failures int) time.Duration {
	wait := d.Min
	for i := 1; i < failures && wait < d.Max; i++ {
		wait *= 2
	}
	return min(wait, d.Max)
}

// Sleep waits. It returns false if ctx ends first.
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

// Earlier returns the earlier of two times. A zero time means none.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
