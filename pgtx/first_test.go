package pgtx_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/pgtx"
)

// ways are all ways in which a first statement reaches the server.
var ways = map[string]func(ctx context.Context, tx pgx.Tx, sql string) error{
	"exec": func(ctx context.Context, tx pgx.Tx, sql string) error {
		_, err := tx.Exec(ctx, sql)
		return err
	},
	"exec with an argument": func(ctx context.Context, tx pgx.Tx, sql string) error {
		_, err := tx.Exec(ctx, sql+` where $1::int is not null`, 1)
		return err
	},
	"exec with an option": func(ctx context.Context, tx pgx.Tx, sql string) error {
		_, err := tx.Exec(ctx, sql, pgx.NamedArgs{}, pgx.QueryExecModeExec)
		return err
	},
	"exec with named arguments": func(ctx context.Context, tx pgx.Tx, sql string) error {
		_, err := tx.Exec(ctx, sql+` where @n::int is not null`, pgx.NamedArgs{"n": 1})
		return err
	},
	"query": func(ctx context.Context, tx pgx.Tx, sql string) error {
		rows, err := tx.Query(ctx, sql)
		if err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	},
	"query with an option": func(ctx context.Context, tx pgx.Tx, sql string) error {
		rows, err := tx.Query(ctx, sql, pgx.QueryResultFormats{1})
		if err != nil {
			return err
		}
		_, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	},
	"row": func(ctx context.Context, tx pgx.Tx, sql string) error {
		var s string
		return tx.QueryRow(ctx, sql).Scan(&s)
	},
	"batch": func(ctx context.Context, tx pgx.Tx, sql string) error {
		b := &pgx.Batch{}
		b.Queue(sql)
		return tx.SendBatch(ctx, b).Close()
	},
}

// The isolation that was asked for holds for the first statement, whichever way it goes and whatever the role's default.
func TestFirstStatementIsInTheTransaction(t *testing.T) {
	t.Parallel()
	for mode, change := range modes {
		pool, _ := devtest.CountedPool(t, func(c *pgxpool.Config) {
			if change != nil {
				change(c)
			}
			c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		})
		for way, send := range ways {
			err := pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := send(ctx, tx, `select current_setting('transaction_isolation')`); err != nil {
					return err
				}
				var isolation string
				require.NoError(t, tx.QueryRow(ctx, `select current_setting('transaction_isolation')`).Scan(&isolation))
				assert.Equal(t, "repeatable read", isolation, "%s: %s", mode, way)
				return nil
			}, pgtx.Isolation(pgx.RepeatableRead))
			require.NoError(t, err, "%s: %s", mode, way)
		}
	}
}

// The server may refuse the first statement while it prepares it, before it has come to BEGIN. The transaction has
// failed all the same, and nothing may be written outside of it.
func TestFailedFirstStatementFailsTheTransaction(t *testing.T) {
	t.Parallel()
	_, table := newTable(t)
	for mode, change := range modes {
		pool, _ := devtest.CountedPool(t, change)
		for way, send := range ways {
			for _, sql := range []string{`select 1/0`, `select x from nowhere_at_all`} {
				err := pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
					err := send(ctx, tx, sql)
					var pgErr *pgconn.PgError
					require.ErrorAs(t, err, &pgErr, "%s: %s", mode, way)
					assert.NotContains(t, err.Error(), "batch")
					if pgErr.Code == "42P01" && (way == "exec" || mode != "simple protocol") { // its batches are one text
						assert.Equal(t, int32(15), pgErr.Position, "%s: %s: in the caller's text", mode, way)
					}
					err = insert(ctx, tx, table, 1)
					require.ErrorAs(t, err, &pgErr)
					assert.Equal(t, "25P02", pgErr.Code)
					return nil
				})
				require.ErrorIs(t, err, pgx.ErrTxCommitRollback, "%s: %s: %s", mode, way, sql)
			}
		}
		assert.Empty(t, numbers(t, pool, table))
	}
}

// An answer that does not fit its destination is the caller's to handle: the transaction goes on.
func TestScanErrorOfTheFirstStatement(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		var n int
		require.Error(t, tx.QueryRow(ctx, `select 'x'::text`).Scan(&n))
		require.ErrorIs(t, tx.QueryRow(ctx, `select 1 where false`).Scan(&n), pgx.ErrNoRows)
		return insert(ctx, tx, table, 1)
	}))
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		var n int
		require.ErrorIs(t, tx.QueryRow(ctx, `select 1 where false`).Scan(&n), pgx.ErrNoRows)
		return insert(ctx, tx, table, 2)
	}))
	assert.Equal(t, []int{1, 2}, numbers(t, pool, table))
}

// A context that had ended before anything was sent is no failed transaction.
func TestUnsentFirstStatement(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	for _, send := range ways {
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			require.ErrorIs(t, send(ended, tx, `select 1`), context.Canceled)
			return insert(ctx, tx, table, 1)
		}))
	}
	assert.Len(t, numbers(t, pool, table), len(ways))
}

func TestCancelledInMidStatement(t *testing.T) {
	t.Parallel()
	_, table := newTable(t)
	pool, _ := devtest.CountedPool(t)
	for _, first := range []bool{true, false} {
		for way, send := range ways {
			ctx, cancel := context.WithCancel(t.Context())
			err := pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				if !first {
					require.NoError(t, insert(ctx, tx, table, 1))
				}
				go cancel() // before or after the statement has arrived; a server that was told too early goes on for its 5 s
				return send(ctx, tx, `select pg_sleep(5)::text`)
			})
			require.Error(t, err, way)
			require.NotErrorIs(t, err, pgtx.ErrOutcomeUnknown)
			require.NoError(t, pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
				assert.Equal(t, byte('I'), c.Conn().PgConn().TxStatus(), way)
				return nil
			}))
		}
	}
	assert.Empty(t, numbers(t, pool, table))
}

// A statement without arguments may be the name of one that was prepared before.
func TestPreparedByName(t *testing.T) {
	t.Parallel()
	_, table := newTable(t)
	pool, _ := devtest.CountedPool(t, func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Prepare(ctx, "one", `insert into `+table+` values (1)`)
			return err
		}
	})
	for range 2 {
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "one")
			return err
		}))
	}
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Prepare(ctx, "two", `insert into `+table+` values ($1)`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "two", 2)
		return err
	}))
	assert.Equal(t, []int{1, 1, 2}, numbers(t, pool, table))
}

func TestCopyAndLargeObjects(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	for _, first := range []bool{true, false} {
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			if !first {
				require.NoError(t, insert(ctx, tx, table, 1))
			}
			objects := tx.LargeObjects()
			oid, err := objects.Create(ctx, 0)
			require.NoError(t, err)
			require.NoError(t, objects.Unlink(ctx, oid))
			return put(ctx, table, 2)
		}))
	}
	schema, name, _ := strings.Cut(table, ".")
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.CopyFrom(ctx, pgx.Identifier{schema, name}, []string{"n"}, pgx.CopyFromRows([][]any{{3}, {4}}))
		return err
	}))
	assert.Equal(t, []int{1, 2, 2, 3, 4}, numbers(t, pool, table))
	require.ErrorIs(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, `select 1/0`)
		objects := tx.LargeObjects()
		_, err := objects.Create(ctx, 0)
		require.ErrorIs(t, err, pgx.ErrTxClosed)
		return errOops
	}), errOops)
}

func TestTransactionIsClosedAfterRun(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	var left pgx.Tx
	var leftCtx context.Context
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		left, leftCtx = tx, ctx
		return insert(ctx, tx, table, 1)
	}))
	for way, send := range ways {
		require.ErrorIs(t, send(t.Context(), left, `select 1`), pgx.ErrTxClosed, way)
	}
	require.ErrorIs(t, pgtx.Queue(leftCtx, `select 1`), pgx.ErrTxClosed)
	_, err := left.Begin(t.Context())
	require.ErrorIs(t, err, pgx.ErrTxClosed)
}

// Nothing is written after a COMMIT that went unseen, because it was sent on the connection itself.
func TestNothingAfterARawEnd(t *testing.T) {
	t.Parallel()
	pool, table := newTable(t)
	for _, first := range []bool{true, false} {
		err := pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			if !first {
				_, err := tx.Exec(ctx, `select 1`)
				require.NoError(t, err)
			}
			_, err := tx.Conn().Exec(ctx, `rollback`)
			require.NoError(t, err)
			require.ErrorIs(t, insert(ctx, tx, table, 1), pgtx.ErrManaged)
			return nil
		})
		require.ErrorIs(t, err, pgtx.ErrManaged)
	}
	assert.Empty(t, numbers(t, pool, table))
}
