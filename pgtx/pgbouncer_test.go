package pgtx_test

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/pgtx"
)

// Behind PgBouncer in transaction mode a connection changes hands with every transaction: BEGIN that travels with a
// statement must hold on to it, and nothing may be left for the next one.
func TestBehindPgBouncer(t *testing.T) {
	t.Parallel()
	server := devtest.Postgres(t, devstack.ServerConfig{})
	bouncer := devtest.PgBouncer(t, server, 2)
	cfg, err := pgxpool.ParseConfig(bouncer.DSN())
	require.NoError(t, err)
	cfg.MaxConns = 8
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	_, err = pool.Exec(t.Context(), `create table t (n int)`)
	require.NoError(t, err)
	const each = 20
	var running sync.WaitGroup
	for w := range 8 {
		running.Go(func() {
			for i := range each {
				n := w*each + i
				err := pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
					if i%2 == 0 {
						var isolation string
						if err := tx.QueryRow(ctx, `select current_setting($1)`, "transaction_isolation").Scan(&isolation); err != nil {
							return err
						}
						assert.Equal(t, "repeatable read", isolation)
					}
					if err := put(ctx, "t", n); err != nil {
						return err
					}
					if i%5 == 0 {
						_, err := tx.Exec(ctx, `select 1/0`)
						return err
					}
					return pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, "t", n) })
				}, pgtx.Isolation(pgx.RepeatableRead))
				assert.Equal(t, i%5 != 0, err == nil, "%v", err)
			}
		})
	}
	running.Wait()
	assert.Len(t, numbers(t, pool, "t"), 8*2*each*4/5)
}
