package outbox

import (
	"context"
	"time"
)

// archiveEvery is how often the relay creates and drops day partitions of the archive. It creates them three days ahead.
const archiveEvery = time.Hour

// keepArchive creates the archive's missing day partitions and drops the expired ones, until ctx ends.
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
