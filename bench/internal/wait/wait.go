// Package wait lets the programs of this module wait.
package wait

import (
	"context"
	"time"
)

// For waits for the duration. It reports false if ctx ended first.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
