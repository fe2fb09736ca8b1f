package pgtx

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

type settings struct {
	isolation pgx.TxIsoLevel
	retries   int
}

// Option changes how Run works.
type Option func(*settings)

// Isolation sets the transaction's isolation level. Without it the role's default holds.
func Isolation(level pgx.TxIsoLevel) Option {
	return func(s *settings) { s.isolation = level }
}

// Retry makes Run repeat the whole transaction, fn included, up to n more times when PostgreSQL ended it for the sake of
// a concurrent one: a serialization failure (40001) or a deadlock (40P01), in a statement or at commit. Between attempts
// it waits a random time of up to 10 ms that doubles with each attempt, 500 ms at most, and stops when ctx ends.
//
// fn must be repeatable: whatever it does besides writing to the transaction happens again. It must return the
// statement's error, wrapped with %w or not. An error that wraps ErrOutcomeUnknown is never retried.
func Retry(n int) Option {
	return func(s *settings) { s.retries = n }
}

const (
	firstBackOff = 10 * time.Millisecond
	maxBackOff   = 500 * time.Millisecond
)

// isConflict reports whether the transaction, known to be rolled back, may succeed when it is repeated.
func isConflict(err error) bool {
	var pgErr *pgconn.PgError
	if errors.Is(err, ErrOutcomeUnknown) || !errors.As(err, &pgErr) {
		return false
	}
	return pgErr.Code == "40001" || pgErr.Code == "40P01"
}

// backOff waits before the next attempt; the random part keeps those who met once from meeting again.
func backOff(ctx context.Context, attempt int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	limit := min(firstBackOff<<min(attempt, 10), maxBackOff)
	timer := time.NewTimer(rand.N(limit))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
