package outbox

import (
	"context"
	"time"
)

const (
	// journalEvery is how often a relay writes what it has counted.
	journalEvery = 10 * time.Second
	// maxCounted is how many topics a relay counts one by one.
	maxCounted = 100
	// archiveEvery is how often the relay creates and drops day partitions of the archive. It creates them three days ahead.
	archiveEvery = time.Hour
)

// writeJournal adds the counts since its last call to the journal. If that fails, the next call adds them again. If the write succeeded and
// only the answer was lost, they count twice. The relay does not depend on the journal.
func (r *Relay) writeJournal(ctx context.Context) {
	taken := r.counted.Take()
	if len(taken) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := r.store.Journal(ctx, taken); err != nil {
		for topic, n := range taken {
			r.counted.Add(topic, n)
		}
		r.cfg.Logger.WarnContext(ctx, "write the outbox's journal", "error", err)
	}
}

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
