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

// A tracer sees all statements: the first one in a batch, unless it has no arguments.
func TestTracers(t *testing.T) {
	t.Parallel()
	_, table := newTable(t)
	var seen []string
	pool, _ := devtest.CountedPool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = tracer{&seen} })
	for range 2 {
		seen = nil
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, insert(ctx, tx, table, 1))
			require.NoError(t, put(ctx, table, 2))
			return insert(ctx, tx, table, 3)
		}))
		statement := `insert into ` + table + ` values ($1)`
		assert.Equal(t, []string{"begin", statement, statement, `insert into ` + table + ` select * from unnest($1::int[])`, "commit"}, seen)
	}
}

type tracer struct{ seen *[]string }

func (tr tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	*tr.seen = append(*tr.seen, d.SQL)
	return ctx
}
func (tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (tr tracer) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	*tr.seen = append(*tr.seen, d.SQL)
}
func (tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// wrapped is a DB of somebody else's, whose transactions end in their own way.
type wrapped struct {
	*pgxpool.Pool
	ends *[]string
}

func (w wrapped) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	tx, err := w.Pool.BeginTx(ctx, o)
	return wrappedTx{tx, w.ends}, err
}

type wrappedTx struct {
	pgx.Tx
	ends *[]string
}

func (w wrappedTx) Commit(ctx context.Context) error {
	*w.ends = append(*w.ends, "commit")
	return w.Tx.Commit(ctx)
}

func (w wrappedTx) Rollback(ctx context.Context) error {
	*w.ends = append(*w.ends, "rollback")
	return w.Tx.Rollback(ctx)
}

func TestOtherDB(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	db := wrapped{devtest.Pool(t), &[]string{}}
	require.NoError(t, pgtx.Run(t.Context(), db, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, put(ctx, table, 1))
		require.NoError(t, pgtx.Run(ctx, db, func(ctx context.Context, _ pgx.Tx) error { return put(ctx, table, 2) }))
		require.Error(t, pgtx.Run(ctx, db, func(ctx context.Context, _ pgx.Tx) error {
			require.NoError(t, put(ctx, table, 3))
			return errOops
		}))
		return insert(ctx, tx, table, 4)
	}, pgtx.Isolation(pgx.Serializable)))
	require.ErrorIs(t, pgtx.Run(t.Context(), db, func(ctx context.Context, _ pgx.Tx) error { return errOops }), errOops)
	require.ErrorContains(t, pgtx.Run(t.Context(), db, func(ctx context.Context, _ pgx.Tx) error {
		return pgtx.Queue(ctx, `select 1/0`)
	}), "division by zero")
	assert.Equal(t, []int{1, 2, 4}, numbers(t, pool, table))
	assert.Equal(t, []string{"commit", "rollback", "rollback"}, *db.ends)
	assert.Zero(t, db.Stat().AcquiredConns())
}

// A single connection is a DB too, and is usable after whatever happened.
func TestSingleConnection(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	require.NoError(t, pgtx.Run(t.Context(), conn, func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, table, 1) }))
	require.Error(t, pgtx.Run(t.Context(), conn, func(ctx context.Context, tx pgx.Tx) error {
		return insert(ctx, tx, "nowhere_at_all", 1)
	}))
	require.NoError(t, pgtx.Run(t.Context(), conn, func(ctx context.Context, tx pgx.Tx) error { return put(ctx, table, 2) }))
	assert.Equal(t, []int{1, 2}, numbers(t, pool, table))
}
