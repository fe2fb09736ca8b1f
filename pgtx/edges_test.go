package pgtx_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/pgtx"
)

func TestAfterCommitOfAnEndedTransaction(t *testing.T) {
	t.Parallel()
	pool, _ := newTable(t)
	var late context.Context
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
		late = ctx
		return nil
	}))
	assert.False(t, pgtx.AfterCommit(late, func() { t.Error("it is never called") }))
}

// What is collected with the context of a nested Run that has rolled back was committed all the same.
func TestContextOfARolledBackSavepoint(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
		var inner context.Context
		require.ErrorIs(t, pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
			inner = ctx
			return errOops
		}), errOops)
		require.ErrorIs(t, put(inner, table, 7), pgx.ErrTxClosed)
		require.ErrorIs(t, pgtx.Queue(inner, `insert into `+table+` values (8)`), pgx.ErrTxClosed)
		return nil
	}))
	assert.Empty(t, numbers(t, pool, table))
}

// A connection that outlives the savepoint in which it was asked for can make savepoints that nobody sees.
func TestConnKeptFromASavepoint(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
		require.NoError(t, put(ctx, table, 1))
		var conn *pgx.Conn
		require.Error(t, pgtx.Run(ctx, pool, func(_ context.Context, tx pgx.Tx) error {
			conn = tx.Conn()
			return errOops
		}))
		_, err := conn.Exec(ctx, "savepoint s")
		require.NoError(t, err)
		require.NoError(t, put(ctx, table, 2))
		_, err = conn.Exec(ctx, "rollback to savepoint s")
		return err
	}))
	assert.Equal(t, []int{1}, numbers(t, pool, table))
}

// A session that the server ended because it was idle had not read COMMIT.
func TestIdleTimeoutIsNoUnknownOutcome(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	for _, collects := range []bool{false, true} {
		err := pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "set local idle_in_transaction_session_timeout = 20; insert into "+table+" values (1)"); err != nil {
				return err
			}
			if collects {
				require.NoError(t, put(ctx, table, 3))
			}
			require.Eventually(t, func() bool {
				var gone bool
				err := pool.QueryRow(ctx, `select not exists (select from pg_stat_activity where state = 'idle in transaction' and query like '%into '||$1||' values (1)')`, table).Scan(&gone)
				return err == nil && gone
			}, time.Minute, 10*time.Millisecond)
			return nil
		})
		require.Error(t, err)
		require.NotErrorIs(t, err, pgtx.ErrOutcomeUnknown)
	}
	assert.Empty(t, numbers(t, pool, table))
}

// A queued ROLLBACK took everything before it back, and the COMMIT after it succeeded.
func TestQueueRefusesWhatIsNotItsBusiness(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	for _, sql := range []string{"rollback", " COMMIT ", "-- x\n begin", "/* a */; end", "savepoint a"} {
		err := pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error { return pgtx.Queue(ctx, sql) })
		require.ErrorIs(t, err, pgtx.ErrManaged, sql)
	}
	for _, sql := range []string{"", " ;; ", "-- only this", "/* open"} {
		err := pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error { return pgtx.Queue(ctx, sql) })
		require.ErrorContains(t, err, "no statement", sql)
	}
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
		return pgtx.Queue(ctx, "-- a note\n/* another */ insert into "+table+" values (1)")
	}))
	assert.Equal(t, []int{1}, numbers(t, pool, table))
}

type tagged struct {
	*pgxpool.Pool
	tags []string
}

// Nested Runs compare their DBs.
func TestDBThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	pool, _ := newTable(t)
	for _, db := range []pgtx.DB{tagged{Pool: pool, tags: []string{"a"}}, nil} {
		err := pgtx.Run(t.Context(), db, func(context.Context, pgx.Tx) error { return nil })
		require.ErrorContains(t, err, "want a *pgxpool.Pool")
	}
}

// A SET for the session outlives its transaction. The next one on the pooled connection could not write.
func TestSessionThatBecameReadOnlyLeavesThePool(t *testing.T) {
	t.Parallel()
	_, table := newTable(t)
	pool := devtest.PoolOn(t, devtest.Pool(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 1 })
	for i := range 3 {
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			if err := insert(ctx, tx, table, i); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `set default_transaction_read_only = on`)
			return err
		}))
	}
	var first, second uint32
	for _, pid := range []*uint32{&first, &second} {
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			*pid = tx.Conn().PgConn().PID()
			return insert(ctx, tx, table, 7)
		}))
	}
	assert.Equal(t, first, second, "a connection without such a setting stays")
}

// A setting of the session outlives its transaction. On the pooled connection it would apply to the next one, which may be another tenant's.
func TestSessionWithAnotherSettingLeavesThePool(t *testing.T) {
	t.Parallel()
	pool := devtest.PoolOn(t, devtest.Pool(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 1 })
	for sql, stays := range map[string]bool{
		`set search_path = tenant_b`:                                      false,
		`select set_config('search_path', 'tenant_b', false)`:             false,
		`set local search_path = tenant_b`:                                true,
		`select set_config('search_path', 'tenant_b', true)`:              true,
		`begin; set search_path = tenant_b`:                               false,
		`do $$ begin perform 1; end $$; set session search_path = tenant`: false,
	} {
		var before, after uint32
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			before = tx.Conn().PgConn().PID()
			_, err := tx.Exec(ctx, sql)
			return err
		}), sql)
		var path string
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			after = tx.Conn().PgConn().PID()
			return tx.QueryRow(ctx, `show search_path`).Scan(&path)
		}), sql)
		assert.NotContains(t, path, "tenant", sql)
		assert.Equal(t, stays, before == after, sql)
	}
}
