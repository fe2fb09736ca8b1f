package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Faults injects failures into a client. It is not safe for concurrent use.
type Faults struct {
	t           testing.TB
	pool        *pgxpool.Pool
	application string
	dice        *rand.Rand
}

// Attack returns faults for one client. They terminate backends with the application name, through pool, and cancel the client's
// contexts.
func Attack(t testing.TB, pool *pgxpool.Pool, application string, client int) *Faults {
	return &Faults{t, pool, application, rand.New(rand.NewPCG(7, uint64(client)))} //nolint:gosec // not a secret
}

// Named is an option of devtest.PoolOn that sets the application name.
func Named(application string) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["application_name"] = application }
}

// One returns true in one of n cases.
func (f *Faults) One(n int) bool { return f.dice.IntN(n) == 0 }

// Before makes one operation in six dangerous: it terminates a backend of any client, or returns a context that ends soon.
func (f *Faults) Before(ctx context.Context) (context.Context, context.CancelFunc) {
	switch f.dice.IntN(12) {
	case 0:
		f.terminate(ctx)
	case 1:
		return context.WithTimeoutCause(ctx, time.Duration(f.dice.IntN(4000))*time.Microsecond, errAttack)
	}
	return context.WithCancel(ctx)
}

var errAttack = fmt.Errorf("the client gives up: %w", context.Canceled)

func (f *Faults) terminate(ctx context.Context) {
	_, err := f.pool.Exec(ctx, `select pg_terminate_backend(pid) from
		(select pid from pg_stat_activity where application_name = $1 order by random() limit 1) as any_backend`, f.application)
	if err != nil && ctx.Err() == nil {
		f.t.Errorf("end a backend: %v", err)
	}
}
