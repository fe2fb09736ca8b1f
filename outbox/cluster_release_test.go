package outbox_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// The oldest and the newest release that are supported: a statement that only the one at hand knows, or an option that a
// build lacks, would be found by users.
func TestReleases(t *testing.T) {
	t.Parallel()
	for _, release := range []string{devstack.OldestPostgres, devstack.NewestPostgres} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			server := devtest.Postgres(t, devstack.ServerConfig{Release: release})
			f := newCluster(t, devtest.PoolOn(t, server.DSN()), "release")
			broker := newLedger()
			f.changes(200)
			f.relayOn(devtest.PoolOn(t, server.DSN()), broker)
			want := map[string][]string{}
			for i := range 200 {
				key := "k" + strconv.Itoa(i%5)
				id, err := f.change(t.Context(), f.pool, key, false)
				require.NoError(t, err)
				want[key] = append(want[key], id)
			}
			lost, vanished := f.drained(broker)
			assert.Empty(t, lost)
			assert.Empty(t, vanished)
			broker.mu.Lock()
			defer broker.mu.Unlock()
			for key, ids := range want {
				assert.Equal(t, ids, broker.byKey[key], "in order")
			}

			var built bool
			require.NoError(t, f.pool.QueryRow(t.Context(), `select 'lz4' = any(enumvals) from pg_settings
				where name = 'default_toast_compression'`).Scan(&built))
			var compression string
			require.NoError(t, f.pool.QueryRow(t.Context(), `select attcompression::text from pg_attribute
				where attrelid = ($1 || '.outbox')::regclass and attname = 'payload'`, f.schema).Scan(&compression))
			assert.Equal(t, map[bool]string{true: "l", false: ""}[built], compression, "lz4 where the server has it: %v", built)
			t.Logf("%s, lz4: %v", server.Source(), built)
		})
	}
}
