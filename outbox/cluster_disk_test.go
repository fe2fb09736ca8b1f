package outbox_test

import (
	"context"
	"crypto/rand"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/pgtx"
)

// A full disk must stop those who want to write, with an error that says so, and nobody else: a relay that gave up, or
// that took the failure of its own writes for a deletion, would leave events behind once there is space again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	disk := devtest.SmallDisk(t, 16)
	server := devtest.Postgres(t, devstack.ServerConfig{Settings: map[string]string{"autovacuum": "off"}})
	_, err := devtest.PoolOn(t, server.DSN()).Exec(ctx, `create tablespace small location '`+disk.Dir()+`'`)
	require.NoError(t, err)
	f := newCluster(t, devtest.PoolOn(t, server.DSN(), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["default_tablespace"] = "small"
	}), "full_disk")
	// Only the outbox's tables are to be full.
	_, err = f.pool.Exec(ctx, `alter table full_disk.change set tablespace pg_default; alter index full_disk.change_pkey set tablespace pg_default`)
	require.NoError(t, err)
	broker := newLedger()
	f.relayOn(devtest.PoolOn(t, server.DSN()), broker)
	f.changes(50)
	eventually(t, "the relay is at work", func() bool { return broker.count() == 50 })

	// One event fills what pages have free, one that is too large for any finds the disk full.
	publish := func(bytes int) error {
		payload := make([]byte, bytes)
		_, _ = rand.Read(payload) // it never fails
		return f.publishPayload(ctx, payload)
	}
	for full := range 2 {
		broker.setDown(true)
		require.NoError(t, publish(1000))
		require.NoError(t, disk.Fill())
		var failed error
		for failed == nil {
			failed = publish(3000)
		}
		var pgErr *pgconn.PgError
		require.ErrorAs(t, failed, &pgErr)
		assert.Equal(t, "53100", pgErr.Code, "disk_full")
		assert.ErrorContains(t, failed, "No space left on device")
		assert.ErrorContains(t, failed, "outbox", "it says whose disk")

		// Deletions need no space, or little: what was committed goes on its way.
		waiting := f.rows()
		require.Positive(t, waiting)
		broker.setDown(false)
		if full == 1 {
			require.NoError(t, disk.Free())
			require.NoError(t, publish(3000), "there is space again")
		}
		eventually(t, "what is committed is published", func() bool { lost, _ := broker.compare(f.committed()); return len(lost) == 0 })
		if full == 0 {
			require.NoError(t, disk.Free())
		}
		lost, vanished := f.drained(broker)
		assert.Empty(t, lost)
		assert.Empty(t, vanished)
	}
}

func (f *cluster) publishPayload(ctx context.Context, payload []byte) error {
	return pgtx.Run(ctx, f.pool, func(ctx context.Context, tx pgx.Tx) error {
		msg := newMessage(ctx, "k", string(payload))
		if _, err := tx.Exec(ctx, `insert into `+f.schema+`.change values ($1)`, msg.UUID); err != nil {
			return err
		}
		return f.publisher.Publish(topic, msg)
	})
}
