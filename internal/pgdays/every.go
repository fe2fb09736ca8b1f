package pgdays

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	period   = time.Hour
	retry    = time.Minute
	patience = 10 * time.Minute
)

// Every calls f at once and then about every hour, or after an error in about a minute, until ctx ends. A call may take ten minutes, so
// that a forgotten transaction does not block the housekeeping forever. Errors of f are logged.
func Every(ctx context.Context, logger *slog.Logger, what string, f func(context.Context) error) error {
	for {
		wait := period
		call, cancel := context.WithTimeout(ctx, patience)
		err := f(call)
		cancel()
		if err != nil && ctx.Err() == nil {
			wait = retry
			logger.ErrorContext(ctx, "housekeeping", "of", what, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait*9/10 + rand.N(wait/5)): // jitter, so that several processes do not run at once
		}
	}
}
