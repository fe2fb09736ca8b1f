package effect_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
)

// A backend has 16 relation locks that cost little, up to PostgreSQL 17. Each look for an effect took two in each of about forty days.
func TestRelationLocksOfAnEffect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, outbox.Migrate(t.Context(), f.pool, f.schema))
	require.NoError(t, claim.Migrate(t.Context(), f.pool, f.schema)) // Complete looks for the event that waits
	f.ledger = f.open(f.pool, effect.Config{MaxConns: 1})
	now := time.Now().UTC()
	var days []string
	for n := -31; n <= 7; n++ {
		day := now.AddDate(0, 0, n)
		days = append(days, day.Format("20060102"))
		f.exec(`create table if not exists ` + f.schema + `.effect_` + days[n+31] + ` partition of ` + f.schema + `.effect
			for values from ('` + day.Format(time.DateOnly) + `Z') to ('` + day.AddDate(0, 0, 1).Format(time.DateOnly) + `Z')`)
	}
	ofEffects := ` from pg_locks l join pg_class c on c.oid = l.relation
		where c.relnamespace = '` + f.schema + `'::regnamespace and c.relname ~ '^effect'`
	f.exec(`create table ` + f.schema + `.locks (n int)`)
	f.exec(`create function ` + f.schema + `.note_locks() returns trigger language plpgsql as $$
		begin
			insert into ` + f.schema + `.locks select count(distinct l.relation)` + ofEffects + ` and l.pid = pg_backend_pid();
			return null;
		end $$`)
	f.exec(`create constraint trigger locks after insert or update on ` + f.schema + `.effect deferrable initially deferred for each row execute function ` + f.schema + `.note_locks()`)
	most := func() (n int) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select coalesce(max(n), 0) from `+f.schema+`.locks`).Scan(&n))
		f.exec(`truncate ` + f.schema + `.locks`)
		return n
	}
	pending := func(key string) error {
		return effect.Once(f.ctx(), key, func(context.Context, string) error { return effect.Pending(time.Hour) })
	}
	for i := range 16 { // a generic plan comes after five
		key := fmt.Sprint("sms:", i)
		require.ErrorIs(t, pending(key), effect.ErrPending)
		n := most()
		assert.Positive(t, n)
		assert.LessOrEqual(t, n, 12, "at the commits of the intent and the outcome")
		require.NoError(t, f.ledger.Complete(t.Context(), nil, key, effect.WasDone(nil)))
		n = most()
		assert.Positive(t, n)
		assert.LessOrEqual(t, n, 12, "at the commit of Complete")
	}
	// locked is how many locks a look has when it comes to the day.
	locked := func(key, day string) (n int) {
		tx, err := f.pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `lock table `+f.schema+`.effect_`+day+` in access exclusive mode`)
		require.NoError(t, err)
		called := make(chan error, 1)
		go func() { called <- pending(key) }()
		require.Eventually(t, func() bool {
			err := f.pool.QueryRow(t.Context(), `select count(distinct l.relation)`+ofEffects+` and l.pid =
				(select pid from pg_locks where relation = $1::text::regclass and not granted)`, f.schema+".effect_"+day).Scan(&n)
			return assert.NoError(t, err) && n > 0
		}, time.Minute, time.Millisecond)
		require.NoError(t, tx.Commit(t.Context()))
		require.ErrorIs(t, <-called, effect.ErrPending)
		return n
	}
	for _, day := range days {
		least := 100
		for try := 0; try < 4 && least > 12; try++ { // making a plan again locks all indexes
			least = min(least, locked(fmt.Sprint("sms:", day, try), day))
		}
		assert.LessOrEqual(t, least, 12, day)
	}
}

// An effect is found while Retain moves it to another day.
func TestEffectThatMovesIsFound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.Equal(t, 1, f.named("key", nil))
	f.age("key")
	calls := make(chan int, 1)
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `lock table `+f.schema+`.effect_20200101 in access exclusive mode`); err != nil {
			return err
		}
		go func() { calls <- f.named("key", errors.New("called")) }()
		require.Eventually(t, func() bool {
			var waits bool
			err := f.pool.QueryRow(t.Context(), `select exists (select from pg_locks where relation = $1::text::regclass and not granted)`, f.schema+".effect_20200101").Scan(&waits)
			return assert.NoError(t, err) && waits
		}, time.Minute, time.Millisecond)
		_, err := tx.Exec(t.Context(), `update `+f.schema+`.effect set created_at = clock_timestamp() where created_at < '2021-01-01Z'`)
		return err
	})
	require.NoError(t, err)
	assert.Zero(t, <-calls)
}
