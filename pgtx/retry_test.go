package pgtx_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pgtx"
)

// Serializable writers that read what the others write: each attempt meets at most the others once.
func TestRetry(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	const writers = 4
	var (
		running  sync.WaitGroup
		attempts = make(chan struct{}, 1000)
	)
	for range writers {
		running.Go(func() {
			assert.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				attempts <- struct{}{}
				var n int
				if err := tx.QueryRow(ctx, `select count(*) from `+table).Scan(&n); err != nil {
					return err
				}
				return pgtx.Queue(ctx, `insert into `+table+` values ($1)`, n+1) // the conflict comes with COMMIT
			}, pgtx.Isolation(pgx.Serializable), pgtx.Retry(100)))
		})
	}
	running.Wait()
	assert.Equal(t, []int{1, 2, 3, 4}, numbers(t, pool, table), "as if one after the other")
	assert.GreaterOrEqual(t, len(attempts), writers)
}

func TestRetryIsForConflictsAlone(t *testing.T) {
	t.Parallel()
	pool, _ := newTable(t)
	conflict := fmt.Errorf("change the account: %w", &pgconn.PgError{Code: "40001"})
	for _, c := range []struct {
		name string
		err  error
		want int
	}{
		{"a conflict", conflict, 4},
		{"a deadlock", &pgconn.PgError{Code: "40P01"}, 4},
		{"another error", &pgconn.PgError{Code: "23505"}, 1},
		{"no error of PostgreSQL", errOops, 1},
		{"a doubt", fmt.Errorf("%w: %w", pgtx.ErrOutcomeUnknown, conflict), 1},
		{"none", nil, 1},
	} {
		n := 0
		err := pgtx.Run(t.Context(), pool, func(context.Context, pgx.Tx) error { n++; return c.err }, pgtx.Retry(3))
		require.ErrorIs(t, err, c.err, c.name)
		assert.Equal(t, c.want, n, c.name)
	}
	require.ErrorContains(t, pgtx.Run(t.Context(), pool, nil, pgtx.Retry(-1)), "pgtx.Retry(-1): want 0 or more")
}

func TestRetryEndsWithItsContext(t *testing.T) {
	t.Parallel()
	pool, _ := newTable(t)
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := pgtx.Run(ctx, pool, func(context.Context, pgx.Tx) error {
		if n++; n == 3 {
			cancel()
		}
		return &pgconn.PgError{Code: "40001"}
	}, pgtx.Retry(1000))
	require.ErrorIs(t, err, context.Canceled)
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr, "and why it was repeated")
	assert.Equal(t, 3, n)
}
