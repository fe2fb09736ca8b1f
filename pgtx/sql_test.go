package pgtx_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/pgtx"
)

// beginSQL begins a database/sql transaction that ends with the test.
func beginSQL(t *testing.T, pool *pgxpool.Pool) *sql.Tx {
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() }) // its context has ended it, or the test
	return tx
}

func TestWithSQL(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	tx := beginSQL(t, pool)
	ctx := pgtx.WithSQL(t.Context(), tx)

	found, ok := pgtx.SQLFrom(ctx)
	assert.True(t, ok)
	assert.Same(t, tx, found)
	_, ok = pgtx.From(ctx)
	assert.False(t, ok)
	_, ok = pgtx.SQLFrom(t.Context())
	assert.False(t, ok)
	assert.False(t, pgtx.AfterCommit(ctx, func() {}))
	collected, err := pgunit.Collect(ctx, note{table}, 1)
	require.NoError(t, err)
	assert.False(t, collected)
	require.NoError(t, pgtx.Flush(ctx))

	require.NoError(t, pgtx.Queue(ctx, `insert into `+table+` values ($1)`, 1))
	require.ErrorContains(t, pgtx.Run(ctx, pool, func(context.Context, pgx.Tx) error { return nil }), "cannot join")
	require.NoError(t, tx.Commit())
	assert.Equal(t, []int{1}, numbers(t, pool, table))

	assert.Equal(t, t.Context(), pgtx.WithSQL(t.Context(), nil))
}

// The innermost transaction counts.
func TestWithBelowWithSQL(t *testing.T) {
	t.Parallel()
	pool, _ := newTable(t)
	tx := beginSQL(t, pool)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, own pgx.Tx) error {
		ctx = pgtx.With(pgtx.WithSQL(ctx, tx), own)
		_, ok := pgtx.SQLFrom(ctx)
		assert.False(t, ok)
		found, ok := pgtx.From(ctx)
		assert.True(t, ok)
		assert.Equal(t, own, found)
		return nil
	}))
}
