package pgtx_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/pgtx"
)

// inserts is a repository's function: it brings its own handle.
func inserts(ctx context.Context, db pgtx.DB, table string, n int) error {
	return pgtx.Run(ctx, db, func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, table, n) })
}

// assertRefused checks that the error names both handles and the remedies.
func assertRefused(t *testing.T, err error, handles ...string) {
	t.Helper()
	for _, want := range append(handles, "pgtx.Detached(ctx)", "would stay if the transaction is rolled back") {
		require.ErrorContains(t, err, want)
	}
}

// address is how an error names the database of a handle.
func address(pool *pgxpool.Pool) string {
	c := pool.Config().ConnConfig
	return c.User + "@" + c.Host
}

// A repository had a second pool of the same database: its transaction was independent, nobody noticed, and a handler that
// was retried wrote its row twice.
func TestDetachedRunOnASecondPool(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	second := devtest.Pool(t)
	for attempt := range 2 {
		require.ErrorIs(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			assertRefused(t, inserts(ctx, second, table, 1), "a transaction of *pgxpool.Pool", "another handle, *pgxpool.Pool", address(pool))
			require.NoError(t, inserts(ctx, pool, table, 2), "the refusal is no statement, so the transaction goes on")
			require.NoError(t, inserts(pgtx.Detached(ctx), second, table, 3+attempt))
			return errOops
		}), errOops)
	}
	assert.Equal(t, []int{3, 4}, numbers(t, pool, table), "what was detached stays, once for each attempt")
	assert.Zero(t, second.Stat().AcquiredConns())
}

func TestDetachedRunThreeDeep(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	second := devtest.Pool(t)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
		return pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
			return pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				assertRefused(t, inserts(ctx, second, table, 1))
				require.ErrorIs(t, pgtx.Run(pgtx.Detached(ctx), second, func(ctx context.Context, _ pgx.Tx) error {
					require.NoError(t, inserts(ctx, second, table, 2), "it joins the detached transaction")
					assertRefused(t, inserts(ctx, pool, table, 3))
					require.NoError(t, inserts(pgtx.Detached(ctx), pool, table, 4))
					return errOops
				}), errOops)
				return insert(ctx, tx, table, 5)
			})
		})
	}))
	assert.Equal(t, []int{4, 5}, numbers(t, pool, table))
}

func TestDetachedContextCarriesNoTransaction(t *testing.T) {
	t.Parallel()
	pool, _ := newTable(t)
	assert.Equal(t, t.Context(), pgtx.Detached(t.Context()))
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		detached := pgtx.Detached(ctx)
		_, ok := pgtx.From(detached)
		assert.False(t, ok)
		_, ok = pgtx.SQLFrom(detached)
		assert.False(t, ok)
		assert.False(t, pgtx.AfterCommit(detached, func() { t.Error("called") }))
		require.ErrorIs(t, pgtx.Queue(detached, `select 1`), pgtx.ErrNoTransaction)
		found, ok := pgtx.From(pgtx.With(detached, tx))
		assert.True(t, ok)
		assert.Equal(t, tx, found)
		return nil
	}))
}

// Millrace does not know on which handle the transaction was begun. Run below it used to join with any, so that the SQL of
// one database ran on another.
func TestDetachedRunBelowWith(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(context.Background())) }()
	ctx := pgtx.With(t.Context(), tx)
	require.NoError(t, inserts(ctx, pool, table, 1))
	require.NoError(t, inserts(ctx, devtest.Pool(t), table, 9), "nobody can tell this pool from the first one, so it joins")
	dsn := pool.Config().ConnString()
	for different, change := range map[string]func(*pgx.ConnConfig){
		"database":   func(c *pgx.ConnConfig) { c.Database = "template1" },
		"port":       func(c *pgx.ConnConfig) { c.Port++ },
		"user":       func(c *pgx.ConnConfig) { c.User = "somebody" },
		"parameters": func(c *pgx.ConnConfig) { c.RuntimeParams["search_path"] = "another" },
	} {
		other := devtest.PoolOn(t, dsn, func(c *pgxpool.Config) { change(c.ConnConfig) })
		assertRefused(t, inserts(ctx, other, table, 2), "a transaction of pgtx.With", "*pgxpool.Pool (", different)
		require.NoError(t, pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
			return pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
				assertRefused(t, inserts(ctx, other, table, 3))
				return nil
			})
		}))
	}
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	assertRefused(t, inserts(ctx, conn, table, 4), "*pgx.Conn (")
	assertRefused(t, inserts(ctx, wrapped{pool, &[]string{}}, table, 5), "pgtx_test.wrapped")
	require.NoError(t, inserts(ctx, tx.Conn(), table, 6), "it is the transaction's own connection")
	require.NoError(t, inserts(ctx, unwraps{wrapped{pool, &[]string{}}}, table, 7))
	require.NoError(t, inserts(pgtx.Detached(ctx), pool, table, 8))
	assert.Equal(t, []int{8}, numbers(t, pool, table), "the others are not committed")
}

func TestDetachedRunBelowWithSQL(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	ctx := pgtx.WithSQL(t.Context(), beginSQL(t, pool))
	assertRefused(t, inserts(ctx, pool, table, 1), "*sql.Tx", "pgtx.SQLFrom", "*pgxpool.Pool ("+address(pool))
	require.NoError(t, inserts(pgtx.Detached(ctx), pool, table, 2))
	assert.Equal(t, []int{2}, numbers(t, pool, table))
}

// unwraps is a wrapper whose author says that transactions of what it wraps will do.
type unwraps struct{ wrapped }

func (u unwraps) Unwrap() pgtx.DB { return u.Pool }

func TestDetachedRunOnAWrapper(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	plain, transparent := wrapped{pool, &[]string{}}, unwraps{wrapped{pool, &[]string{}}}
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
		assertRefused(t, inserts(ctx, plain, table, 1), "*pgxpool.Pool ("+address(pool), "pgtx_test.wrapped", "Unwrap() pgtx.DB")
		return inserts(ctx, transparent, table, 2)
	}))
	assert.Empty(t, *transparent.ends, "it joined")
	require.NoError(t, pgtx.Run(t.Context(), transparent, func(ctx context.Context, _ pgx.Tx) error {
		assertRefused(t, inserts(ctx, plain, table, 3))
		return inserts(ctx, pool, table, 4)
	}))
	assert.Equal(t, []string{"commit"}, *transparent.ends, "the outermost Run is the wrapper's")
	assert.Equal(t, []int{2, 4}, numbers(t, pool, table))
}

// Run on the transaction's own connection sent another BEGIN, and its COMMIT ended the outer transaction.
func TestDetachedRunOnTheTransactionsConnection(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.ErrorIs(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, inserts(ctx, tx.Conn(), table, 1))
		return errOops
	}), errOops)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	require.ErrorIs(t, pgtx.Run(t.Context(), conn, func(ctx context.Context, _ pgx.Tx) error {
		require.NoError(t, inserts(ctx, conn.Conn(), table, 2))
		require.NoError(t, inserts(ctx, conn, table, 3))
		assertRefused(t, inserts(ctx, pool, table, 4), "*pgxpool.Conn (")
		return errOops
	}), errOops)
	assert.Empty(t, numbers(t, pool, table))
}
