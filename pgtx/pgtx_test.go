package pgtx_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/pgtx"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// newTable returns a pool and the name of a table with one column, n.
func newTable(t *testing.T) (pool *pgxpool.Pool, table string) {
	return newTableOn(t, devtest.Pool(t), devtest.Schema(t))
}

// newLonelyTable returns one in a database of its own: a deferrable constraint changes what groups of claims do in the whole database.
func newLonelyTable(t *testing.T) (pool *pgxpool.Pool, table string) {
	return newTableOn(t, devtest.PoolOn(t, devtest.Database(t)), "public")
}

func newTableOn(t *testing.T, pool *pgxpool.Pool, schema string) (on *pgxpool.Pool, table string) {
	_, err := pool.Exec(t.Context(), `create table `+schema+`.t (n int)`)
	require.NoError(t, err)
	return pool, schema + ".t"
}

func numbers(t *testing.T, pool *pgxpool.Pool, table string) []int {
	rows, err := pool.Query(t.Context(), `select n from `+table+` order by n`)
	require.NoError(t, err)
	ns, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(t, err)
	return ns
}

func insert(ctx context.Context, tx pgx.Tx, table string, n int) error {
	_, err := tx.Exec(ctx, `insert into `+table+` values ($1)`, n)
	return err
}

var errOops = errors.New("oops")

func TestRunCommitsOrRollsBack(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		found, ok := pgtx.From(ctx)
		assert.True(t, ok)
		assert.Equal(t, tx, found)
		return insert(ctx, tx, table, 1)
	}))
	require.ErrorIs(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(insert(ctx, tx, table, 2), errOops)
	}), errOops)
	assert.PanicsWithValue(t, "oops", func() {
		_ = pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			_ = insert(ctx, tx, table, 3)
			panic("oops")
		})
	})
	assert.Equal(t, []int{1}, numbers(t, pool, table))
	assert.Zero(t, pool.Stat().AcquiredConns(), "every connection is back")
}

func TestCancelledContextGivesTheConnectionBack(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	ctx, cancel := context.WithCancel(t.Context())
	before := pool.Stat().NewConnsCount()
	err := pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, insert(ctx, tx, table, 1))
		cancel()
		return ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	assert.Empty(t, numbers(t, pool, table))
	assert.LessOrEqual(t, pool.Stat().NewConnsCount(), before+1, "the rollback did not tear the connection down")
}

func TestEndBelongsToRun(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		require.ErrorIs(t, tx.Commit(ctx), pgtx.ErrManaged)
		require.ErrorIs(t, tx.Rollback(ctx), pgtx.ErrManaged)
		return insert(ctx, tx, table, 1)
	}))
	assert.Equal(t, []int{1}, numbers(t, pool, table))
}

func TestRunInsideRunIsASavepoint(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, insert(ctx, tx, table, 1))
		require.ErrorIs(t, pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(insert(ctx, tx, table, 2), errOops)
		}), errOops)
		require.ErrorContains(t, pgtx.Run(ctx, pool, nil, pgtx.Isolation(pgx.Serializable)), "outermost")
		return pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, table, 3) })
	}))
	assert.Equal(t, []int{1, 3}, numbers(t, pool, table))
}

// A service function that uses Run, called below a transaction of the caller's own, must not commit by itself.
func TestRunBelowWithJoins(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, pgtx.Run(pgtx.With(t.Context(), tx), pool, func(ctx context.Context, tx pgx.Tx) error {
		assert.False(t, pgtx.AfterCommit(ctx, func() { t.Error("called for a commit that nobody saw") }))
		return insert(ctx, tx, table, 1)
	}))
	require.NoError(t, tx.Rollback(t.Context()))
	assert.Empty(t, numbers(t, pool, table))
}

func TestAfterCommit(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	var called []string
	after := func(ctx context.Context, name string) {
		assert.True(t, pgtx.AfterCommit(ctx, func() { called = append(called, name) }))
	}
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		after(ctx, "outer")
		require.NoError(t, pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
			after(ctx, "inner")
			return nil
		}))
		require.Error(t, pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
			after(ctx, "undone")
			return errOops
		}))
		assert.Empty(t, called, "not committed yet")
		return insert(ctx, tx, table, 1)
	}))
	require.Error(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
		after(ctx, "rolled back")
		return errOops
	}))
	assert.Equal(t, []string{"outer", "inner"}, called)
	assert.False(t, pgtx.AfterCommit(t.Context(), func() {}), "no transaction")
}

// PostgreSQL answers COMMIT of a failed transaction with ROLLBACK, which is no error in the protocol.
func TestSwallowedErrorIsNoCommit(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	err := pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, insert(ctx, tx, table, 1))
		_, _ = tx.Exec(ctx, `select 1/0`)
		return nil
	})
	require.ErrorIs(t, err, pgx.ErrTxCommitRollback)
	require.NotErrorIs(t, err, pgtx.ErrOutcomeUnknown)
	assert.Empty(t, numbers(t, pool, table))
}

// A handler that sends COMMIT or ROLLBACK as a statement would write on outside of the transaction, unnoticed.
func TestRawEndIsRefused(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, insert(ctx, tx, table, 1))
		for _, end := range []string{"commit", " -- done\n COMMIT;", "end", "abort", "rollback", "rollback work", "ROLLBACK TRANSACTION AND CHAIN"} {
			_, err := tx.Exec(ctx, end)
			require.ErrorIs(t, err, pgtx.ErrManaged, end)
			require.ErrorIs(t, tx.QueryRow(ctx, end).Scan(), pgtx.ErrManaged, end)
		}
		_, err := tx.Exec(ctx, "savepoint a; insert into "+table+" values (2)")
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "rollback /* not all of it */ work to a")
		return err
	}))
	assert.Equal(t, []int{1}, numbers(t, pool, table))
}

// The release of a savepoint in which a statement failed fails too, and then nobody rolled back to it.
func TestSwallowedErrorInASavepointSparesTheOuterTransaction(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		require.ErrorIs(t, pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, `select 1/0`)
			return nil
		}), pgx.ErrTxCommitRollback)
		return insert(ctx, tx, table, 1)
	}))
	assert.Equal(t, []int{1}, numbers(t, pool, table))
}

func TestRefusedCommitIsKnown(t *testing.T) {
	t.Parallel()
	pool, table := newLonelyTable(t)
	_, err := pool.Exec(t.Context(), `alter table `+table+` add unique (n) deferrable initially deferred`)
	require.NoError(t, err)
	err = pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(insert(ctx, tx, table, 1), insert(ctx, tx, table, 1))
	})
	require.ErrorContains(t, err, "duplicate key")
	require.NotErrorIs(t, err, pgtx.ErrOutcomeUnknown)
}

// The backend is killed while it commits: a deferred trigger holds it there.
func TestConnectionLostInCommitIsUnknown(t *testing.T) {
	t.Parallel()
	pool, table := newLonelyTable(t)
	_, err := pool.Exec(t.Context(), `
		create function `+table+`_slow() returns trigger language plpgsql as 'begin perform pg_sleep(60); return null; end';
		create constraint trigger slow after insert on `+table+` deferrable initially deferred for each row execute function `+table+`_slow()`)
	require.NoError(t, err)
	pid := make(chan uint32, 1)
	result := make(chan error, 1)
	go func() {
		result <- pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			pid <- tx.Conn().PgConn().PID()
			return insert(ctx, tx, table, 1)
		})
	}()
	backend := <-pid
	require.Eventually(t, func() bool {
		var committing bool
		err := pool.QueryRow(t.Context(), `select wait_event = 'PgSleep' from pg_stat_activity where pid = $1`, backend).Scan(&committing)
		return err == nil && committing
	}, time.Minute, 10*time.Millisecond)
	_, err = pool.Exec(t.Context(), `select pg_terminate_backend($1)`, backend)
	require.NoError(t, err)
	require.ErrorIs(t, <-result, pgtx.ErrOutcomeUnknown)
}
