package store_test

import (
	"context"
	"strconv"
	"testing"
	"testing/fstest"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

func TestMain(m *testing.M) { devtest.Main(m) }

func migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	m, err := store.Migrations.In(pool, schema)
	if err != nil {
		return err
	}
	return m.Up(ctx)
}

// The shard of a key is part of the stored format: these values must never change.
func TestShardsAreStable(t *testing.T) {
	got := map[string]int16{}
	for _, key := range []string{"a", "labour-1", "42", "Ünïcödé"} {
		got[key] = int16(store.Hash(key, "ignored") % 16)
	}
	assert.Equal(t, map[string]int16{"a": 0, "labour-1": 14, "42": 4, "Ünïcödé": 10}, got)
	for name, key := range map[string]func(i int) string{
		"no key":  func(int) string { return "" },
		"numbers": strconv.Itoa,
		"prefix":  func(i int) string { return "customer-" + strconv.Itoa(i) },
	} {
		spread := map[int16]int{}
		for i := range 16_000 {
			spread[int16(store.Hash(key(i), uuid.Must(uuid.NewV7()).String())%16)]++
		}
		for s := range int16(16) {
			assert.InDelta(t, 1000, spread[s], 250, "%s, shard %d", name, s)
		}
	}
}

func TestEveryStatementPrepares(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, migrate(t.Context(), pool, schema))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	require.NoError(t, pgschema.Prepare(t.Context(), conn.Conn(), store.Files, schema))
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	schema, cfg := devtest.Schema(t), devtest.Pool(t).Config()
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	errs := make(chan error, 4)
	for range cap(errs) {
		go func() { errs <- migrate(t.Context(), pool, schema) }()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	require.NoError(t, store.Migrations.Check(t.Context(), pool, schema))
	require.ErrorContains(t, migrate(t.Context(), pool, "no-good"), `Schema is "no-good"`)

	older := store.Migrations
	older.Files = fstest.MapFS{}
	require.ErrorContains(t, older.Check(t.Context(), pool, schema), "run a newer program")

	require.NoError(t, outboxadmin.ChangeShards(t.Context(), pool, schema, 20, nil))
	down, err := store.Files.ReadFile("migrations/001_outbox.down.sql")
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), pgschema.Render(string(down), schema))
	require.NoError(t, err)
	var left int
	require.NoError(t, pool.QueryRow(t.Context(), `select count(*) from pg_class where relnamespace = $1::regnamespace and relname like 'outbox%'`, schema).Scan(&left))
	assert.Zero(t, left)
}

func TestDownKeepsWhatIsNotPublished(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	m, err := store.Migrations.In(pool, schema)
	require.NoError(t, err)
	exec := func(sql string) {
		_, err := pool.Exec(t.Context(), pgschema.Render(sql, schema))
		require.NoError(t, err)
	}
	require.NoError(t, m.Up(t.Context()))
	exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) select 0, 1, 'a', 't', '', '', ''`)
	exec(`insert into {schema}.outbox_delayed (due_at, hash, event_id, topic, key, headers, payload) select now(), 0, 'a', 't', '', '', '' from generate_series(1, 2)`)
	exec(`insert into {schema}.outbox_failed (state, hash, shard, seq, event_id, topic, key, headers, payload, created_at)
		select unnest(array['retrying', 'blocked', 'dead', 'discarded']), 0, 0, 1, 'a', 't', '', '', '', now()`)
	require.ErrorContains(t, m.Down(t.Context(), 0, false), "1 in the outbox, 2 delayed, 3 failed or blocked")
	require.NoError(t, m.Down(t.Context(), 0, true))
	require.NoError(t, m.Up(t.Context()))
	exec(`insert into {schema}.outbox_failed (state, hash, shard, seq, event_id, topic, key, headers, payload, created_at)
		values ('discarded', 0, 0, 1, 'a', 't', '', '', '', now())`)
	require.NoError(t, m.Down(t.Context(), 0, false))
}
