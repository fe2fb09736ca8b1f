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

// Isolation sets the transaction's isolation level. Without this option the transaction has the session's default level.
func Isolation(level pgx.TxIsoLevel) Option {
	return func(s *settings) { s.isolation = level }
}

// Retry makes Run repeat the whole transaction, fn included, up to n more times after a conflict with a concurrent
// transaction: a serialization failure (40001) or a deadlock (40P01), in a statement or at commit. Before each retry it
// waits a random time. The limit of this time is 10 ms, doubles with each attempt, and is 500 ms at most. Run stops
// retrying when ctx ends.
//
// fn must be repeatable: its effects outside of the transaction happen again. It must return the statement's error, wrapped
// with %w or not. An error that wraps ErrOutcomeUnknown is never retried.
func Retry(n int) Option {
	return func(s *settings) { s.retries = n }
}

const (
	firstBackOff = 10 * time.Millisecond
	maxBackOff   = 500 * time.Millisecond
)

// isConflict reports whether err means that the transaction was rolled back because of a conflict, so a retry may succeed.
func isConflict(err error) bool {
	var pgErr *pgconn.PgError
	if errors.Is(err, ErrOutcomeUnknown) || !errors.As(err, &pgErr) {
		return false
	}
	return pgErr.Code == "40001" || pgErr.Code == "40P01"
}

// backOff waits before the next attempt. The wait is random, so that two transactions that have conflicted do not conflict again.
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
