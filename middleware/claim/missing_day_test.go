package claim_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
)

// Midnight has come and nobody has made the day: the first claim does.
func TestMissingDaysAreMade(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for n := range 9 {
		f.exec(`drop table ` + f.today(n-1))
	}
	f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})

	// Neither was anybody there for the days before: what waited in the broker has its day too.
	f.retain()
	for n := range 9 {
		f.exec(`drop table ` + f.today(n-1))
	}
	f.exec(fmt.Sprintf(`create table %s partition of %s.processed for values from ('%s') to ('%s')`, f.today(-5), f.schema,
		boundOf(t, -5), boundOf(t, -4)))
	f.settles(t.Context(), claim.Key{Consumer: "labour/bill", EventID: mintedAt(-3 * day)})
	f.settles(t.Context(), claim.Key{Consumer: "labour/bill", EventID: mintedAt(-4 * day)})
}

// boundOf is the least UUIDv7 of that many days from now.
func boundOf(t *testing.T, days int) string {
	ms := fmt.Sprintf("%012x", time.Now().UTC().Truncate(day).AddDate(0, 0, days).UnixMilli())
	id, err := uuid.Parse(ms + "00000000000000000000")
	require.NoError(t, err)
	return id.String()
}

// Days were dropped by hand, without a floor. Nobody made them again, for what was processed in them would run again; so no
// event of theirs was ever handled, and of today's none at all. They are made, and what was minted before is too old.
func TestMissingDay(t *testing.T) {
	t.Parallel()
	for name, missing := range map[string][]int{"today": {0}, "yesterday": {-1}, "both": {-1, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			lost := claim.Key{Consumer: "labour/notify", EventID: mintedAt(time.Duration(missing[0]) * day)}
			f.settles(t.Context(), lost)
			for _, n := range missing {
				f.exec(`drop table ` + f.today(n))
			}
			for _, n := range missing {
				f.settlesOrRefuses(claim.Key{Consumer: "labour/notify", EventID: mintedAt(time.Duration(n) * day)}, n < 0)
			}
			f.refuses(lost, claim.ErrTooOld)
			f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
			f.settles(claim.WithProof(t.Context()), lost)
			f.settles(t.Context(), claim.Key{Consumer: "labour/new", EventID: mintedAt(-day - time.Minute)})
		})
	}

	t.Run("control", func(t *testing.T) { // nobody made the days in time: nothing is lost, and nobody is bound
		t.Parallel()
		f := newFixture(t)
		f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0) + "?"})
		f.midnight()
		f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
		assert.Zero(t, f.count("consumer where floor is not null"))
	})

	t.Run("in a group", func(t *testing.T) {
		t.Parallel()
		g := newGrouped(t, claim.Config{})
		g.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
		g.exec(`drop table ` + g.today(0))
		g.handle(g.effect, mintedAt(0), mintedAt(0))
		later := []string{mintedAt(time.Second), mintedAt(time.Second)}
		for i, r := range g.handle(g.effect, later...) {
			assert.True(t, r.acked(), "%d: %v", i, r)
		}
		assert.Contains(t, g.effects(), later[1])
	})

	t.Run("the role may not", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.exec(`drop table ` + f.today(0))
		f.exec(`revoke execute on function ` + f.schema + `.processed_days(int) from public`)
		role := f.schema + "_r"
		f.exec(`create role ` + role + `; grant usage on schema ` + f.schema + ` to ` + role + `; grant select, insert, update on all tables in schema ` + f.schema + ` to ` + role)
		t.Cleanup(func() { f.exec(`drop owned by ` + role + `; drop role ` + role) })
		other := devtest.PoolOn(t, f.pool.Config().ConnString(), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["role"] = role })
		err := claim.NewPostgresStore(other, claim.Schema(f.schema)).Do(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)}, nil)
		require.ErrorContains(t, err, `millrace retention run`)
		require.ErrorContains(t, err, time.Now().UTC().Format(time.DateOnly))
		f.retain() // which that command does
		f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
	})
}

// settlesOrRefuses claims an event, which is too old or not.
func (f *fixture) settlesOrRefuses(key claim.Key, old bool) {
	if old {
		f.refuses(key, claim.ErrTooOld)
		return
	}
	require.Eventually(f.t, func() bool { // its first claim makes the day: what was minted before that is too old
		key.EventID = mintedAt(0)
		return f.store.Do(context.Background(), key, func(context.Context) error { return nil }) == nil
	}, time.Minute, time.Millisecond)
}
