package pgtx_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/pgtx"
)

// put collects the number, or inserts it at once where it must.
func put(ctx context.Context, table string, n int) error {
	collected, err := pgunit.Collect(ctx, note{table}, n)
	if collected || err != nil {
		return err
	}
	tx, _ := pgtx.From(ctx)
	return insert(ctx, tx, table, n)
}

func TestQueueAndCollectWaitForTheCommit(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, put(ctx, table, 1))
		require.NoError(t, pgtx.Queue(ctx, `insert into `+table+` values ($1)`, 2))
		var n int
		require.NoError(t, tx.QueryRow(ctx, `select count(*) from `+table).Scan(&n))
		assert.Zero(t, n)
		require.NoError(t, pgtx.Flush(ctx))
		require.NoError(t, tx.QueryRow(ctx, `select count(*) from `+table).Scan(&n))
		assert.Equal(t, 2, n)
		return put(ctx, table, 3)
	}))
	assert.Equal(t, []int{1, 2, 3}, numbers(t, pool, table))
}

func TestQueueWithoutATransaction(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, pgtx.Queue(t.Context(), `select 1`), pgtx.ErrNoTransaction)
	collected, err := pgunit.Collect(t.Context(), note{"t"}, 1)
	require.NoError(t, err)
	assert.False(t, collected)
	require.NoError(t, pgtx.Flush(t.Context()))
}

func TestQueueBelowWithExecutesAtOnce(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	ctx := pgtx.With(t.Context(), tx)
	require.NoError(t, pgtx.Queue(ctx, `insert into `+table+` values ($1)`, 1))
	require.NoError(t, put(ctx, table, 2))
	require.NoError(t, tx.Commit(ctx))
	assert.Equal(t, []int{1, 2}, numbers(t, pool, table))
}

// A function that is given only the transaction puts it into a context of its own: it is still Run's.
func TestWithRecognizesRunsTransaction(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	called := false
	require.NoError(t, pgtx.Run(t.Context(), pool, func(_ context.Context, tx pgx.Tx) error {
		ctx := pgtx.With(context.Background(), tx)
		assert.True(t, pgtx.AfterCommit(ctx, func() { called = true }))
		collected, err := pgunit.Collect(ctx, note{table}, 1)
		assert.True(t, collected)
		return err
	}))
	assert.True(t, called)
	assert.Equal(t, []int{1}, numbers(t, pool, table))
}

// An error in COMMIT's round trip is no doubt: the transaction is rolled back.
func TestErrorInTheCommitPipelineIsKnown(t *testing.T) {
	t.Parallel()
	for mode, change := range modes {
		for name, c := range map[string]struct {
			sql  string
			args []any
			want string
		}{
			"while executing": {`select 1 / $1::int`, []any{0}, "division by zero"},
			"while preparing": {`insert into nowhere_at_all values ($1)`, []any{1}, "nowhere_at_all"},
			"while encoding":  {`select $1::int`, []any{struct{ c chan int }{}}, ""},
			"not a statement": {`selec`, nil, "syntax error"},
		} {
			for _, first := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/%v", mode, name, first), func(t *testing.T) {
					t.Parallel()
					_, table := newTable(t)
					pool, _ := devtest.CountedPool(t, change)
					for range 2 { // with and without prepared statements
						err := pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
							if !first {
								require.NoError(t, insert(ctx, tx, table, 1))
							}
							require.NoError(t, put(ctx, table, 2))
							return pgtx.Queue(ctx, c.sql, c.args...)
						})
						require.ErrorContains(t, err, c.want)
						require.ErrorContains(t, err, "commit: queued statement: ")
						require.NotErrorIs(t, err, pgtx.ErrOutcomeUnknown)
					}
					require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error { return put(ctx, table, 3) }))
					assert.Equal(t, []int{3}, numbers(t, pool, table))
				})
			}
		}
	}
}

// Events must not outlive the savepoint that they were collected in, nor be lost with one that they were not. The
// savepoints are Run's, pgx's Begin, and SAVEPOINT as a statement, which goes unseen but for its text.
func TestUndone(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	rapid.Check(t, func(rt *rapid.T) {
		_, err := pool.Exec(t.Context(), `truncate `+table)
		require.NoError(rt, err)
		var (
			next int
			want []int
			step func(ctx context.Context, tx pgx.Tx, depth int) error
		)
		undone := func(before []int, undo bool) {
			if undo {
				want = before
			}
		}
		step = func(ctx context.Context, tx pgx.Tx, depth int) error {
			for range rapid.IntRange(0, 5).Draw(rt, "steps") {
				before, undo := slices.Clone(want), rapid.Bool().Draw(rt, "undo")
				what := rapid.SampledFrom([]string{"put", "put", "queue", "insert", "row", "fail", "flush", "run", "run", "begin", "raw", "conn"}).Draw(rt, "what")
				if depth == 3 && (what == "run" || what == "fail" || what == "begin" || what == "raw") {
					what = "put"
				}
				switch what {
				case "put", "queue":
					next++
					want = append(want, next)
					f := func() error { return put(ctx, table, next) }
					if what == "queue" {
						f = func() error { return pgtx.Queue(ctx, `insert into `+table+` values ($1)`, next) }
					}
					if err := f(); err != nil {
						return err
					}
				case "insert":
					next++
					want = append(want, next)
					if err := insert(ctx, tx, table, next); err != nil {
						return err
					}
				case "row":
					next++
					want = append(want, next)
					var n int
					if err := tx.QueryRow(ctx, `insert into `+table+` values ($1) returning n`, next).Scan(&n); err != nil {
						return err
					}
				case "fail":
					err := pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
						if err := step(ctx, tx, depth+1); err != nil {
							return err
						}
						_, err := tx.Exec(ctx, rapid.SampledFrom([]string{`select 1/0`, `selec`, `select x from nowhere_at_all`}).Draw(rt, "sql"))
						return errors.Join(err, errOops)
					})
					if !errors.Is(err, errOops) {
						return err
					}
					undone(before, true)
				case "flush":
					if err := pgtx.Flush(ctx); err != nil {
						return err
					}
				case "conn":
					if rapid.IntRange(0, 5).Draw(rt, "rarely") == 0 {
						tx.Conn()
					}
				case "run":
					err := pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
						if err := step(ctx, tx, depth+1); err != nil || !undo {
							return err
						}
						return errOops
					})
					if err != nil && !errors.Is(err, errOops) {
						return err
					}
					undone(before, undo)
				case "begin":
					sp, err := tx.Begin(ctx)
					if err != nil {
						return err
					}
					if err := step(ctx, sp, depth+1); err != nil {
						return err
					}
					end := sp.Commit
					if undo {
						end = sp.Rollback
					}
					if err := end(ctx); err != nil {
						return err
					}
					undone(before, undo)
				case "raw":
					name := fmt.Sprint("raw_", next, "_", depth)
					if _, err := tx.Exec(ctx, `SAVEPOINT `+name); err != nil {
						return err
					}
					if err := step(ctx, tx, depth+1); err != nil {
						return err
					}
					if undo {
						if _, err := tx.Exec(ctx, `rollback to `+name); err != nil {
							return err
						}
					}
					undone(before, undo)
				}
			}
			return nil
		}
		require.NoError(rt, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error { return step(ctx, tx, 0) }))
		require.ElementsMatch(rt, want, numbers(t, pool, table))
	})
}
