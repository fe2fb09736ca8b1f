package pgtx_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/pgtx"
)

// A savepoint travels with the first statement inside it, its release with the next one after it.
// (A test named after savepoints has a schema, and so statements, that mention them: those go direct.)
func TestRoundTripsOfNestedRuns(t *testing.T) {
	t.Parallel()
	_, table := newTable(t)
	statement := `insert into ` + table + ` values ($1)`
	ten := func(ctx context.Context, pool *pgxpool.Pool, fn func(ctx context.Context, tx pgx.Tx) error) error {
		for range 10 {
			if err := pgtx.Run(ctx, pool, fn); err != nil {
				return err
			}
		}
		return nil
	}
	one := func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, table, 1) }
	queued := func(ctx context.Context, _ pgx.Tx) error { return pgtx.Queue(ctx, statement, 2) }
	for mode, change := range modes {
		for _, c := range []struct {
			name         string
			want, simple int // simple: texts cannot be told from those that the server would not read
			fn           func(ctx context.Context, pool *pgxpool.Pool, tx pgx.Tx) error
		}{
			{"nothing", 0, 0, func(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx) error {
				return ten(ctx, pool, func(context.Context, pgx.Tx) error { return nil })
			}},
			{"nothing, rolled back", 0, 0, func(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx) error {
				assert.Equal(t, errOops, pgtx.Run(ctx, pool, func(context.Context, pgx.Tx) error { return errOops }))
				return nil
			}},
			{"ten with a statement each", 11, 21, func(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx) error {
				return ten(ctx, pool, one)
			}},
			{"ten with a text each", 11, 11, func(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx) error {
				return ten(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `insert into `+table+` values (1); insert into `+table+` values (2)`)
					return err
				})
			}},
			{"ten with a row each", 11, 21, func(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx) error {
				return ten(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
					var n int
					return tx.QueryRow(ctx, `select $1::int`, 1).Scan(&n)
				})
			}},
			{"ten with a batch each", 11, 21, func(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx) error {
				return ten(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
					b := &pgx.Batch{}
					b.Queue(statement, 1)
					b.Queue(statement, 2)
					return tx.SendBatch(ctx, b).Close()
				})
			}},
			{"ten with a queued statement each", 1, 1, func(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx) error {
				return ten(ctx, pool, queued)
			}},
			{"ten with both", 11, 21, func(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx) error {
				return ten(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
					if err := one(ctx, tx); err != nil {
						return err
					}
					return queued(ctx, tx)
				})
			}},
			{"ten that send what they queued", 11, 21, func(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx) error {
				return ten(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
					if err := queued(ctx, tx); err != nil {
						return err
					}
					return pgtx.Flush(ctx)
				})
			}},
			{"three inside each other", 2, 3, func(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx) error {
				return pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
					return pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error { return pgtx.Run(ctx, pool, one) })
				})
			}},
			{"rolled back", 3, 4, func(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx) error {
				assert.Equal(t, errOops, pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
					assert.NoError(t, one(ctx, tx))
					return errOops
				}))
				return nil
			}},
		} {
			t.Run(mode+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				pool, counter := devtest.CountedPool(t, change)
				require.NoError(t, pool.Ping(t.Context()))
				want := c.want
				if mode == "simple protocol" {
					want = c.simple
				}
				run := func() {
					assert.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error { return c.fn(ctx, pool, tx) }))
				}
				run() // the statements become known; then the pipelines that they are in are prepared
				assert.Equal(t, want, counter.Of(run))
			})
		}
	}
}

// Whatever the server refuses, and whenever it does (some of it before it has executed the savepoint), only what was done
// inside the savepoint is gone.
func TestFailedStatementSparesWhatIsOutsideOfItsRun(t *testing.T) {
	t.Parallel()
	_, table := newTable(t)
	for mode, change := range modes {
		pool, _ := devtest.CountedPool(t, change)
		want := []int{}
		for way, send := range ways {
			for _, sql := range []string{`select 1/0`, `select x from nowhere_at_all`, `selec 1`} {
				for _, first := range []bool{true, false} { // the transaction begins with it
					require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
						if !first {
							require.NoError(t, insert(ctx, tx, table, 1))
							want = append(want, 1)
						}
						for range 2 {
							err := pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
								require.NoError(t, pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, table, 9) }))
								return send(ctx, tx, sql)
							})
							var pgErr *pgconn.PgError
							require.ErrorAs(t, err, &pgErr, "%s: %s", mode, way)
							require.ErrorAs(t, pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error { return send(ctx, tx, sql) }), &pgErr)
						}
						want = append(want, 2)
						return pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, table, 2) })
					}), "%s: %s: %s", mode, way, sql)
				}
			}
		}
		assert.ElementsMatch(t, want, numbers(t, pool, table), mode)
		_, err := pool.Exec(t.Context(), `truncate `+table)
		require.NoError(t, err)
	}
}

// The server knew the statement and pgx has forgotten it: the refusal comes before the savepoint is there. Nothing may be
// taken for done then.
func TestStatementThatIsRefusedTooEarly(t *testing.T) {
	t.Parallel()
	_, table := newTable(t)
	pool, _ := devtest.CountedPool(t, func(c *pgxpool.Config) { c.ConnConfig.StatementCacheCapacity = 4 })
	_, err := pool.Exec(t.Context(), `create table `+table+`_gone (n int)`)
	require.NoError(t, err)
	nested := func(ctx context.Context) error {
		return pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, table+"_gone", 1) })
	}
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error { return nested(ctx) }))
	for i := range 5 {
		_, err := pool.Exec(t.Context(), fmt.Sprintf(`select $1::int + %d`, i), 1)
		require.NoError(t, err)
	}
	_, err = pool.Exec(t.Context(), `drop table `+table+`_gone`)
	require.NoError(t, err)
	err = pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, insert(ctx, tx, table, 1))
		require.ErrorContains(t, nested(ctx), "_gone")
		require.ErrorContains(t, pgtx.Run(ctx, pool, nil), "25P02")
		return nil
	})
	require.ErrorIs(t, err, pgx.ErrTxCommitRollback)
	assert.Empty(t, numbers(t, pool, table))
}

// A nested Run whose context has ended has not succeeded, whatever it did.
func TestEndedContextUndoesItsRun(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		inner, cancel := context.WithCancel(ctx)
		require.ErrorIs(t, pgtx.Run(inner, pool, func(ctx context.Context, tx pgx.Tx) error {
			defer cancel()
			return insert(ctx, tx, table, 1)
		}), context.Canceled)
		require.ErrorIs(t, pgtx.Run(inner, pool, nil), context.Canceled)
		return insert(ctx, tx, table, 2)
	}))
	assert.Equal(t, []int{2}, numbers(t, pool, table))
}

// Rows that were left open are the mistake of the Run that left them so, not of what comes next.
func TestRowsLeftOpen(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.ErrorContains(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, insert(ctx, tx, table, 1))
		err := pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, `select 1`) //nolint:sqlclosecheck // the mistake
			return err
		})
		require.ErrorContains(t, err, "were not closed")
		require.ErrorContains(t, pgtx.Run(ctx, pool, nil), "were not closed")
		return nil
	}), "were not closed")
	assert.Empty(t, numbers(t, pool, table))
}

// A savepoint by hand that was never sent leaves no release behind that was overtaken by another.
func TestReleaseThatIsOvertaken(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, table, 1) }))
			ended, cancel := context.WithCancel(ctx)
			cancel()
			_, err := tx.Exec(ended, `savepoint mine`)
			require.ErrorIs(t, err, context.Canceled)
			return nil
		}))
		return insert(ctx, tx, table, 2)
	}))
	assert.ElementsMatch(t, []int{1, 2}, numbers(t, pool, table))
}

// connless is a DB whose transactions tell nothing of their connection, as those of a mock.
type connless struct{ *pgxpool.Pool }

func (c connless) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	tx, err := c.Pool.BeginTx(ctx, o)
	return connlessTx{tx}, err
}

type connlessTx struct{ pgx.Tx }

func (connlessTx) Conn() *pgx.Conn { return nil }

func TestNestedRunWithoutAConnection(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	db := connless{pool}
	require.NoError(t, pgtx.Run(t.Context(), db, func(ctx context.Context, _ pgx.Tx) error {
		return pgtx.Run(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
			assert.False(t, pgunit.Lost(ctx))
			return insert(ctx, tx, table, 1)
		})
	}))
	assert.Equal(t, []int{1}, numbers(t, pool, table))
}

// Large objects of a failed transaction cost no more than its savepoint.
func TestLargeObjectsAfterAFailedStatement(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, insert(ctx, tx, table, 1))
		require.Error(t, pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `select 1/0`)
			require.Error(t, err)
			objects := tx.LargeObjects()
			_, err = objects.Create(ctx, 0)
			return err
		}))
		return nil
	}))
	assert.Equal(t, []int{1}, numbers(t, pool, table))
}
