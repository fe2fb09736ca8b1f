package claim_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
)

func TestConcurrencyFitsThePool(t *testing.T) {
	t.Parallel()
	dsn := devtest.Pool(t).Config().ConnString()
	for _, c := range []struct {
		conns         int32
		subscriptions int
		want          int
	}{
		{conns: 22, subscriptions: 1, want: 20},
		{conns: 22, subscriptions: 3, want: 6},
		{conns: 22, subscriptions: 0, want: 20},
		{conns: 4, subscriptions: 10, want: 1}, // they take turns, and none stands still for ever
		{conns: 1, subscriptions: 1, want: 1},
	} {
		pool := devtest.PoolOn(t, dsn, func(config *pgxpool.Config) { config.MaxConns = c.conns })
		require.Equal(t, c.want, claim.Concurrency(pool, c.subscriptions), "%d connections, %d subscriptions", c.conns, c.subscriptions)
	}
}
