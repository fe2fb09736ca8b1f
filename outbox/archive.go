package outbox

import (
	"context"
	"time"
)

// archiveEvery is how often the archive's days are made and dropped. Days are made three ahead.
const archiveEvery = time.Hour

// keepArchive makes the days of the archive that are missing and drops those that are past, until ctx ends.
func (r *Relay) keepArchive(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(archiveEvery):
		}
		if err := r.store.KeepArchive(ctx); err != nil && ctx.Err() == nil {
			r.cfg.Logger.ErrorContext(ctx, "keep the archive", "error", err)
		}
	}
}
