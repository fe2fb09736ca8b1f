package outbox_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
)

// A standby that lags is behind in rows and in sequences: after its promotion numbers are given out again that the
// relay has seen, and one that went by what it had seen would never read the rows that bear them.
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, source := range []outbox.Source{outbox.Table, outbox.WAL} {
		t.Run(source.String(), func(t *testing.T) {
			t.Parallel()
			testFailover(t, source)
		})
	}
}

func testFailover(t *testing.T, source outbox.Source) {
	ctx := t.Context()
	primary := devtest.Postgres(t, devstack.ServerConfig{})
	f := newCluster(t, devtest.PoolOn(t, primary.DSN()), "failover")
	f.changes(300)
	standby := devtest.Standby(t, primary, devstack.ServerConfig{})
	promoted := devtest.PoolOn(t, standby.DSN())

	var address atomic.Value
	address.Store(primary.Address())
	broker := newLedger()
	f.relayFrom(source, devtest.PoolOn(t, primary.DSN(), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address.Load().(string))
		}
	}), broker)
	eventually(t, "the relay is at work", func() bool { return broker.count() == 300 && f.rows() == 0 })

	// The relay has deleted the rows on the primary, and what it reads from now on the standby never gets.
	_, err := promoted.Exec(ctx, `alter system set primary_conninfo = ''`)
	require.NoError(t, err)
	_, err = promoted.Exec(ctx, `select pg_reload_conf()`)
	require.NoError(t, err)
	eventually(t, "the standby is cut off", func() bool {
		var following int
		require.NoError(t, f.pool.QueryRow(ctx, `select count(*) from pg_stat_replication where application_name not like 'millrace-relay-%'`).Scan(&following))
		return following == 0
	})
	f.changes(3000)
	eventually(t, "the relay has seen high numbers", func() bool { return broker.count() == 3300 && f.rows() == 0 })
	f.changes(50)
	require.NoError(t, primary.Crash(ctx))
	require.NoError(t, standby.Promote(ctx))
	promoted.Reset()
	address.Store(standby.Address())

	f.pool = promoted
	var high int64
	require.NoError(t, promoted.QueryRow(ctx, `select max(last_value) from pg_sequences where schemaname = $1`, f.schema).Scan(&high))
	require.Less(t, high, int64(100), "the numbers begin anew below those that the relay has seen")
	f.changes(300)
	for range 100 {
		_, err := f.change(ctx, promoted, "one by one", false)
		require.NoError(t, err)
	}
	lost, _ := f.drained(broker)
	assert.Empty(t, lost, "rows that exist on the promoted server")
	assert.Len(t, f.committed(), 700)
}
