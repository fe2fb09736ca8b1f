package pgtx_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/pgtx"
)

// asleep returns the process ID of the server's that runs fn's transaction, and what Run returns, once it sleeps.
func asleep(ctx context.Context, t *testing.T, pool *pgxpool.Pool, fn func(ctx context.Context) error) (backend int, result <-chan error) {
	pid, ended := make(chan int, 1), make(chan error, 1)
	go func() {
		ended <- pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			var n int
			if err := tx.QueryRow(ctx, `select pg_backend_pid()`).Scan(&n); err != nil {
				return err
			}
			pid <- n
			return fn(ctx)
		})
	}()
	backend = <-pid
	require.Eventually(t, func() bool {
		var sleeping bool
		err := pool.QueryRow(t.Context(), `select wait_event is not distinct from 'PgSleep' from pg_stat_activity where pid = $1`, backend).Scan(&sleeping)
		return err == nil && sleeping
	}, time.Minute, 10*time.Millisecond)
	return backend, ended
}

// The connection is lost in COMMIT's round trip: while a queued statement runs, COMMIT was not reached; while COMMIT
// itself runs (a deferred trigger holds it there) nobody knows.
func TestConnectionLostInTheCommitPipeline(t *testing.T) {
	t.Parallel()
	pool, table := newLonelyTable(t)
	_, err := pool.Exec(t.Context(), `
		create function `+table+`_slow() returns trigger language plpgsql as 'begin perform pg_sleep(60); return null; end';
		create constraint trigger slow after insert on `+table+` deferrable initially deferred
		for each row when (new.n = 99) execute function `+table+`_slow()`)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		fn      func(ctx context.Context) error
		unknown bool
	}{
		"in a queued statement": {func(ctx context.Context) error { return pgtx.Queue(ctx, `select pg_sleep(60)`) }, false},
		"in COMMIT":             {func(ctx context.Context) error { return put(ctx, table, 99) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend, result := asleep(t.Context(), t, pool, c.fn)
			_, err := pool.Exec(t.Context(), `select pg_terminate_backend($1)`, backend)
			require.NoError(t, err)
			err = <-result
			require.ErrorContains(t, err, "57P01")
			if c.unknown {
				require.ErrorIs(t, err, pgtx.ErrOutcomeUnknown)
			} else {
				require.NotErrorIs(t, err, pgtx.ErrOutcomeUnknown)
			}
			assert.Empty(t, numbers(t, pool, table))
		})
	}
}

// A context that ends during COMMIT's round trip leaves the same doubt.
func TestContextEndsInCommit(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, result := asleep(ctx, t, pool, func(ctx context.Context) error {
		require.NoError(t, put(ctx, table, 1))
		return pgtx.Queue(ctx, `select pg_sleep(60)`)
	})
	cancel()
	err := <-result
	require.ErrorIs(t, err, pgtx.ErrOutcomeUnknown)
	require.ErrorIs(t, err, context.Canceled)
}

// The server commits, and its answer is lost. Where pgx reads the answers to a batch or to the simple protocol it says "conn
// closed" then, with a behaviour that means that nothing was sent; such a commit was taken for a known failure.
func TestAnswerToCommitIsLost(t *testing.T) {
	t.Parallel()
	for mode, change := range modes {
		for _, queued := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/queued %v", mode, queued), func(t *testing.T) {
				t.Parallel()
				pool, table := newTable(t)
				cuttable, cut := devtest.CutPool(t, change)
				run := func(end func()) error {
					return pgtx.Run(t.Context(), cuttable, func(ctx context.Context, _ pgx.Tx) error {
						defer end()
						if queued {
							return errors.Join(put(ctx, table, 1), pgtx.Queue(ctx, `insert into `+table+` values (2)`))
						}
						return put(ctx, table, 1)
					})
				}
				require.NoError(t, run(func() {}), "and everything is prepared")
				before := len(numbers(t, pool, table))
				require.ErrorIs(t, run(cut.Next), pgtx.ErrOutcomeUnknown)
				assert.Len(t, numbers(t, pool, table), 2*before)
			})
		}
	}
}
