package claim

import (
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
)

// upTo is the line as a program of that version knows it.
func upTo(t *testing.T, version int) pgschema.Line {
	older := fstest.MapFS{}
	for _, name := range []string{"001_claim", "002_failed"}[:version] {
		for _, suffix := range []string{".up.sql", ".down.sql"} {
			content, err := files.ReadFile("migrations/" + name + suffix)
			require.NoError(t, err)
			older["migrations/"+name+suffix] = &fstest.MapFile{Data: content}
		}
	}
	l := migrations
	l.Files = older
	return l
}

// claimV1 is how programs of version 1 claim.
const claimV1 = `with claim as materialized (
    select pg_try_advisory_xact_lock($1) as locked
), known as materialized (
    select id from {schema}.consumer where id = $3::smallint and name = $5
), record as (
    insert into {schema}.processed (event_id, consumer)
    select $2::uuid, id from claim, known where locked
    on conflict do nothing
    returning 1
)
select (select locked from claim), exists (select from record), exists (select from known),
       set_config('idle_in_transaction_session_timeout', $4::text, true)`

// A table of version 1 with the records of all kinds of IDs, and a program of version 1 whose role owns nothing.
func TestMigrateFromVersion1(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	first, err := upTo(t, 1).In(pool, schema)
	require.NoError(t, err)
	require.NoError(t, first.Up(t.Context()))
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(t.Context(), pgschema.Render(sql, schema), args...)
		require.NoError(t, err)
	}
	role := schema + "_r"
	exec(`create role ` + role)
	exec(`grant usage on schema {schema} to ` + role + `; grant select, insert on {schema}.processed, {schema}.consumer to ` + role)
	defer exec(`drop owned by ` + role + `; drop role ` + role)
	exec(`insert into {schema}.consumer (name) values ('notify')`)
	old := devtest.PoolOn(t, pool.Config().ConnString(), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["role"] = role
		cfg.MaxConns = 1 // its statements stay prepared
	})
	claimOld := func(id string) (fresh bool) {
		k := Key{Consumer: "notify", EventID: id}
		require.NoError(t, old.QueryRow(t.Context(), pgschema.Render(claimV1, schema), lockKey(schema, k), recordID(k), 1, "10000", "notify").Scan(nil, &fresh, nil, nil))
		return fresh
	}
	at := func(d time.Duration) string {
		id := uuid.Must(uuid.NewV7())
		ms := time.Now().Add(d).UnixMilli()
		for i := range 6 {
			id[i] = byte(ms >> (8 * (5 - i)))
		}
		return id.String()
	}
	ids := []string{at(0), at(time.Hour), at(-24 * time.Hour), at(-400 * 24 * time.Hour), at(6 * 24 * time.Hour), at(20 * 24 * time.Hour), at(21 * 24 * time.Hour), uuid.NewString(), "order 1"}
	for _, id := range ids {
		require.True(t, claimOld(id))
	}
	beyond := "f0000000-0000-7000-8000-000000000000" // a day without a name is forgotten
	require.True(t, claimOld(beyond))
	records := func() []time.Time {
		rows, err := pool.Query(t.Context(), pgschema.Render(`select claimed_at from {schema}.processed where event_id <> $1 order by event_id`, schema), beyond)
		require.NoError(t, err)
		times, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
		require.NoError(t, err)
		return times
	}
	before := records()

	m, err := Migrations(pool, schema)
	require.NoError(t, err)
	require.NoError(t, m.Up(t.Context()))
	require.NoError(t, upTo(t, 1).Check(t.Context(), pool, schema), "programs of version 1 may go on")
	assert.Equal(t, before, records())
	for _, id := range ids {
		assert.False(t, claimOld(id), id)
	}
	created := at(0)
	assert.True(t, claimOld(created), "an old program goes on")
	s := NewPostgresStore(pool, Schema(schema))
	for _, id := range append(ids, created) {
		require.ErrorIs(t, s.Do(t.Context(), Key{Consumer: "notify", EventID: id}, nil), ErrCompleted, id)
	}
	_, err = old.Exec(t.Context(), pgschema.Render(`select {schema}.processed_days(7)`, schema))
	require.NoError(t, err, "who could claim can make days")

	require.NoError(t, m.Down(t.Context(), 2, false))
	for _, id := range append(ids, created) {
		assert.False(t, claimOld(id), id)
	}
	assert.True(t, claimOld(at(0)))
	require.NoError(t, m.Up(t.Context()))
	for _, id := range append(ids, created) {
		require.ErrorIs(t, s.Do(t.Context(), Key{Consumer: "notify", EventID: id}, nil), ErrCompleted, id)
	}
}
