package pgtx_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/pgtx"
)

// note collects numbers and inserts all of them with one statement.
type note struct{ table string }

func (n note) Flush(_ context.Context, items []any, b *pgx.Batch) error {
	all := make([]int, len(items))
	for i, item := range items {
		all[i] = item.(int)
	}
	b.Queue(`insert into `+n.table+` select * from unnest($1::int[])`, all)
	return nil
}
func (note) Explain(err error) error { return err }
func (note) Locks() bool             { return false }

func TestRoundTrips(t *testing.T) {
	t.Parallel()
	_, table := newTable(t)
	statement := `insert into ` + table + ` values ($1)`
	collect := func(ctx context.Context, n int) {
		collected, err := pgunit.Collect(ctx, note{table}, n)
		assert.NoError(t, err)
		assert.True(t, collected)
	}
	for mode, change := range modes {
		for _, c := range []struct {
			name string
			want int
			fn   func(ctx context.Context, tx pgx.Tx) error
		}{
			{"nothing", 0, func(context.Context, pgx.Tx) error { return nil }},
			{"nothing, rolled back", 0, func(context.Context, pgx.Tx) error { return errOops }},
			{"a statement", 2, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, statement, 1)
				return err
			}},
			{"a statement without arguments", 2, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into `+table+` values (1); insert into `+table+` values (2)`)
				return err
			}},
			{"a query", 2, func(ctx context.Context, tx pgx.Tx) error {
				rows, err := tx.Query(ctx, `select n from `+table)
				if err != nil {
					return err
				}
				_, err = pgx.CollectRows(rows, pgx.RowTo[int])
				return err
			}},
			{"a row", 2, func(ctx context.Context, tx pgx.Tx) error {
				var n int
				return tx.QueryRow(ctx, `select $1::int`, 1).Scan(&n)
			}},
			{"a batch", 2, func(ctx context.Context, tx pgx.Tx) error {
				b := &pgx.Batch{}
				b.Queue(statement, 1)
				b.Queue(statement, 2)
				return tx.SendBatch(ctx, b).Close()
			}},
			{"a statement, something queued, much collected", 2, func(ctx context.Context, tx pgx.Tx) error {
				for i := range 100 {
					collect(ctx, i)
				}
				assert.NoError(t, pgtx.Queue(ctx, statement, 2))
				_, err := tx.Exec(ctx, statement, 1)
				return err
			}},
			{"only something queued and collected", 1, func(ctx context.Context, _ pgx.Tx) error {
				collect(ctx, 1)
				return pgtx.Queue(ctx, statement, 2)
			}},
			{"two statements and one queued, rolled back", 3, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, statement, 1)
				assert.NoError(t, err)
				assert.NoError(t, pgtx.Queue(ctx, statement, 2))
				_, err = tx.Exec(ctx, statement, 1)
				assert.NoError(t, err)
				return errOops
			}},
		} {
			t.Run(mode+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				pool, counter := devtest.CountedPool(t, change)
				require.NoError(t, pool.Ping(t.Context()))
				assert.Equal(t, c.want, counter.Of(func() {
					if err := pgtx.Run(t.Context(), pool, c.fn, pgtx.Isolation(pgx.ReadCommitted)); err != nil {
						assert.ErrorIs(t, err, errOops)
					}
				}))
			})
		}
	}
}

// modes are pools as people configure them.
var modes = map[string]func(*pgxpool.Config){
	"default":         func(*pgxpool.Config) {},
	"exec":            func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec },
	"simple protocol": func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol },
	"cache describe":  func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe },
}
