package claim_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
)

// The oldest and the newest release that are supported.
func TestReleases(t *testing.T) {
	t.Parallel()
	for _, release := range []string{devstack.OldestPostgres, devstack.NewestPostgres} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			server := devtest.Postgres(t, devstack.ServerConfig{Release: release})
			pool := devtest.PoolOn(t, server.DSN())
			f := &fixture{t: t, pool: pool, schema: "release", store: claim.NewPostgresStore(pool, claim.Schema("release"))}
			f.exec(`create schema release; create table release.effect (event_id text not null)`)
			require.NoError(t, outbox.Migrate(t.Context(), pool, f.schema))
			require.NoError(t, claim.Migrate(t.Context(), pool, f.schema))
			for _, id := range []string{mintedAt(0), mintedAt(-10 * day), "order 1"} {
				f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: id, Order: "key"})
			}
			f.exec(`drop table ` + f.today(7))
			end := f.holding(claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
			done := f.retaining()
			f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
			require.NoError(t, end(nil))
			require.NoError(t, <-done)
			f.refuses(claim.Key{Consumer: "labour/notify", EventID: mintedAt(-10 * day)}, claim.ErrTooOld)
			f.settles(t.Context(), claim.Key{Consumer: "late", EventID: mintedAt(-10 * day)})
			var version string
			require.NoError(t, pool.QueryRow(t.Context(), `show server_version`).Scan(&version))
			assert.Contains(t, version, release)

			m, err := claim.Migrations(pool, f.schema)
			require.NoError(t, err)
			require.NoError(t, m.Down(t.Context(), 0, false))
			require.NoError(t, m.Up(t.Context()))
		})
	}
}
