package claim_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/claim/claimtest"
	"github.com/millrace-go/millrace/pgtx"
)

// conformancePool has a connection for every claim that the suite holds at once.
func conformancePool(t *testing.T) *pgxpool.Pool {
	return devtest.PoolOn(t, devtest.Pool(t).Config().ConnString(), func(cfg *pgxpool.Config) { cfg.MaxConns = 40 })
}

func TestPostgresStoreConforms(t *testing.T) {
	t.Parallel()
	claimtest.Run(t, func(t *testing.T) claimtest.Fixture {
		f := claimtest.Postgres(t, conformancePool(t), devtest.Schema(t))
		f.Events = devtest.Storm(5000, 500)
		return f
	})
}

// A Claim keeps the store's promises in each mode.
func TestLazyClaimConforms(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for _, name := range []string{"lazy", "grouped", "deferred"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claimtest.Run(t, func(t *testing.T) claimtest.Fixture {
				f := claimtest.Postgres(t, conformancePool(t), devtest.Schema(t))
				c, err := claim.New(f.Store, (&fixture{mode: modes[name]}).inMode(claim.Config{}))
				if err != nil {
					t.Fatal(err)
				}
				f.Store, f.Events = claim.AsStore(c), devtest.Storm(3000, 400)
				return f
			})
		})
	}
}

// checkThenAct is what the claim is there against: it looks whether the event was processed, runs the handler, and keeps a
// record, with nothing that holds the event in between.
type checkThenAct struct {
	claim.Store
	pool  *pgxpool.Pool
	table string
}

func (s checkThenAct) Do(ctx context.Context, key claim.Key, fn func(ctx context.Context) error) error {
	var known bool
	if err := s.pool.QueryRow(ctx, `select exists (select from `+s.table+` where id = $1)`, key.EventID).Scan(&known); err != nil {
		return err
	}
	if known {
		return claim.ErrCompleted
	}
	return pgtx.Run(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := fn(ctx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `insert into `+s.table+` values ($1) on conflict do nothing`, key.EventID)
		return err
	})
}

func TestCheckThenActDoubles(t *testing.T) {
	t.Parallel()
	claimtest.Doubles(t, func(t *testing.T) claimtest.Fixture {
		pool, schema := conformancePool(t), devtest.Schema(t)
		f := claimtest.Postgres(t, pool, schema)
		f.Store, f.Events = checkThenAct{f.Store, pool, schema + ".done"}, 500
		if _, err := pool.Exec(t.Context(), `create table `+schema+`.done (id text primary key)`); err != nil {
			t.Fatal(err)
		}
		return f
	})
}
