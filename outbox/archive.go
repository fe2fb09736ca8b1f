package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// archiveEvery is how often the archive's days are made and dropped. Days are made three ahead.
const archiveEvery = time.Hour

// archiveDays makes the days of the archive that are missing and drops those that are past.
func (r *Relay) archiveDays(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	_, err := r.pool.Exec(ctx, r.sql.archiveDays, fmt.Sprintf("%d seconds", int64(r.cfg.Archive.Seconds())))
	if err != nil {
		return fmt.Errorf("make the days of the archive: %w", err)
	}
	return nil
}

// keepArchive does so until ctx ends.
func (r *Relay) keepArchive(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(archiveEvery):
		}
		if err := r.archiveDays(ctx); err != nil && ctx.Err() == nil {
			r.cfg.Logger.ErrorContext(ctx, "keep the archive", "error", err)
		}
	}
}

// archived makes up for a day that is missing, which is the only reason for what is deleted not to fit into the archive.
func (r *Relay) archived(ctx context.Context, err error) error {
	const noPartition = "23514"
	var pgErr *pgconn.PgError
	if r.cfg.Archive == 0 || !errors.As(err, &pgErr) || pgErr.Code != noPartition {
		return err
	}
	return errors.Join(err, r.archiveDays(ctx))
}
