package pgtx_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/pgtx"
)

var errRefused = errors.New("refused")

// What comes behind a refused opening is not executed, however the pool is configured, and everything in the transaction
// says why.
func TestOpening(t *testing.T) {
	t.Parallel()
	test := func(mode string, change func(*pgxpool.Config), implicit bool) {
		t.Run(fmt.Sprintf("%s, implicit %t", mode, implicit), func(t *testing.T) {
			t.Parallel()
			schema := devtest.Schema(t)
			pool, counter := devtest.CountedPool(t, change)
			_, err := pool.Exec(t.Context(), `create table `+schema+`.effect (n int)`)
			require.NoError(t, err)
			insert := `insert into ` + schema + `.effect values ($1)`
			run := func(divisor int, fn func(ctx context.Context, tx pgx.Tx) error) (o *pgunit.Opening, err error) {
				o = &pgunit.Opening{
					SQL: `select 1 / $1::int`, Args: []any{divisor}, Implicit: implicit,
					Explain: func(err error) error { return fmt.Errorf("%w: %w", errRefused, err) },
				}
				err = pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
					require.NoError(t, pgunit.Open(ctx, o))
					require.Error(t, pgunit.Open(ctx, o), "it has one")
					assert.True(t, pgunit.Sound(ctx), "no statement has failed")
					return fn(ctx, tx)
				}, pgtx.Isolation(pgx.ReadCommitted))
				return o, err
			}
			exec := func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, insert, 1); return err }
			queue := func(ctx context.Context, _ pgx.Tx) error { return pgtx.Queue(ctx, insert, 1) }
			nothing := func(context.Context, pgx.Tx) error { return nil }
			rows := 0
			for what, c := range map[string]struct {
				fn         func(ctx context.Context, tx pgx.Tx) error
				trips, row int
			}{"exec": {exec, 2, 1}, "queue": {queue, 1, 1}, "nothing": {nothing, 1, 0}} {
				check := func() {
					o, err := run(0, c.fn)
					require.ErrorIs(t, err, errRefused, what)
					require.ErrorIs(t, o.Err, errRefused)
					o, err = run(0, func(ctx context.Context, tx pgx.Tx) error { _ = c.fn(ctx, tx); return nil })
					require.ErrorIs(t, err, errRefused, "%s, and its error is swallowed", what)
					require.ErrorIs(t, o.Err, errRefused)
				}
				check() // on a connection that does not know the statements
				assert.Equal(t, c.trips, counter.Of(func() {
					o, err := run(1, c.fn)
					require.NoError(t, err, what)
					assert.True(t, o.Sent)
					rows += c.row
				}), what)
				check()
				assert.Equal(t, rows, count(t, pool, schema), what)
				pool.Reset()
			}
			_, err = run(0, func(ctx context.Context, tx pgx.Tx) error {
				require.ErrorIs(t, exec(ctx, tx), errRefused)
				require.ErrorIs(t, exec(ctx, tx), errRefused)
				require.ErrorIs(t, queue(ctx, tx), errRefused)
				require.ErrorIs(t, pgunit.Begin(ctx), errRefused)
				return pgtx.Run(ctx, pool, exec)
			})
			require.ErrorIs(t, err, errRefused)
			_, err = run(1, func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(queue(ctx, tx), pgtx.Queue(ctx, `select 1 / $1::int`, 0), queue(ctx, tx))
			})
			require.ErrorContains(t, err, "queued statement")
			assert.Equal(t, rows, count(t, pool, schema), "nothing of the pipeline is committed")
			o, err := run(0, func(context.Context, pgx.Tx) error { return errOops })
			require.ErrorIs(t, err, errOops)
			assert.False(t, o.Sent)
			require.Error(t, pgunit.Open(t.Context(), o), "without a transaction")
			require.NoError(t, pgunit.Begin(t.Context()))
		})
	}
	for mode, change := range modes {
		test(mode, change, false)
		test(mode, change, true)
	}
}

func count(t *testing.T, pool *pgxpool.Pool, schema string) (n int) {
	require.NoError(t, pool.QueryRow(t.Context(), `select count(*) from `+schema+`.effect`).Scan(&n))
	return n
}
