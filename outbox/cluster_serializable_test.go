package outbox_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// A relay that ran at a role's default isolation level, serializable, would read what producers write and so make their
// transactions fail: here each of them reads what another one changes, which is no conflict until somebody reads the
// outbox.
func TestSerializableByDefault(t *testing.T) {
	t.Parallel()
	server := devtest.Postgres(t, devstack.ServerConfig{})
	f := newCluster(t, devtest.PoolOn(t, server.DSN(), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "read committed" // the test reads the outbox too
	}), "serializable")
	_, err := f.pool.Exec(t.Context(), `alter role postgres set default_transaction_isolation = 'serializable';
		create table `+f.schema+`.rate (n int); insert into `+f.schema+`.rate values (0)`)
	require.NoError(t, err)
	var isolation string
	pool := devtest.PoolOn(t, server.DSN())
	require.NoError(t, pool.QueryRow(t.Context(), `show transaction_isolation`).Scan(&isolation))
	require.Equal(t, "serializable", isolation)

	broker := newLedger()
	f.relayOn(devtest.PoolOn(t, server.DSN()), broker)
	writers, stop := context.WithCancel(t.Context())
	changing := make(chan error, 1)
	go func() {
		for {
			_, err := pool.Exec(context.WithoutCancel(writers), `update `+f.schema+`.rate set n = n + 1`)
			if err != nil || writers.Err() != nil {
				changing <- err
				return
			}
		}
	}()
	reading := make(chan error, 4)
	for w := range cap(reading) {
		go func() {
			for range 150 {
				if _, err := f.change(context.Background(), pool, strconv.Itoa(w), false, `select n from `+f.schema+`.rate`); err != nil {
					reading <- err
					return
				}
			}
			reading <- nil
		}()
	}
	for range cap(reading) {
		assert.NoError(t, <-reading, "a producer suffers from the relay")
	}
	stop()
	require.NoError(t, <-changing)
	lost, vanished := f.drained(broker)
	assert.Empty(t, lost)
	assert.Empty(t, vanished)
}
