package outbox

import (
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
)

// The shard of a key is part of the stored format: these values must never change.
func TestShardsAreStable(t *testing.T) {
	got := map[string]int16{}
	for _, key := range []string{"a", "labour-1", "42", "Ünïcödé"} {
		got[key] = int16(hashOf(key, "ignored") % 16)
	}
	assert.Equal(t, map[string]int16{"a": 0, "labour-1": 14, "42": 4, "Ünïcödé": 10}, got)
	for name, key := range map[string]func(i int) string{
		"no key":  func(int) string { return "" },
		"numbers": strconv.Itoa,
		"prefix":  func(i int) string { return "customer-" + strconv.Itoa(i) },
	} {
		spread := map[int16]int{}
		for i := range 16_000 {
			spread[int16(hashOf(key(i), NewID())%16)]++
		}
		for s := range int16(16) {
			assert.InDelta(t, 1000, spread[s], 250, "%s, shard %d", name, s)
		}
	}
}

func TestEveryStatementPrepares(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, schema))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	require.NoError(t, pgschema.Prepare(t.Context(), conn.Conn(), files, schema))
}

// Whatever looks for the events of a key in the side table reads no more than those.
func TestFailedEventsAreFoundByTheHashOfTheirKey(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, schema))
	exec := func(sql string) {
		_, err := pool.Exec(t.Context(), pgschema.Render(sql, schema))
		require.NoError(t, err)
	}
	exec(`insert into {schema}.outbox_failed (state, hash, shard, seq, event_id, topic, key, headers, payload, created_at)
		select 'blocked', n % 1000, 0, n, n, 't', 'key ' || n % 1000, '', '', now() from generate_series(1, 10000) n`)
	exec(`analyze {schema}.outbox_failed`)
	for name, args := range map[string][]any{
		"failed_left":    {0, []int64{7}, []string{"key 7"}},
		"failed_promote": {0, 7, "key 7"},
		"failed_rows":    {0, 7, "key 7", 7, 10, 1000},
		"locate_behind":  {0, 7, "key 7", 5007},
	} {
		rows, err := pool.Query(t.Context(), "explain "+pgschema.Query(files, name, schema), append([]any{pgx.QueryExecModeExec}, args...)...)
		require.NoError(t, err, name)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err, name)
		assert.Regexp(t, `(?s)outbox_failed_key.*Index Cond: .*hash = `, strings.Join(plan, "\n"), name)
	}
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
		go func() { errs <- Migrate(t.Context(), pool, schema) }()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	require.NoError(t, migrations.Check(t.Context(), pool, schema))
	require.ErrorContains(t, Migrate(t.Context(), pool, "no-good"), `Schema is "no-good"`)

	older := migrations
	older.Files = fstest.MapFS{}
	require.ErrorContains(t, older.Check(t.Context(), pool, schema), "run a newer program")

	require.NoError(t, ChangeShards(t.Context(), pool, schema, 20, nil))
	down, err := files.ReadFile("migrations/001_outbox.down.sql")
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), pgschema.Render(string(down), schema))
	require.NoError(t, err)
	var left int
	require.NoError(t, pool.QueryRow(t.Context(), `select count(*) from pg_class where relnamespace = $1::regnamespace and relname like 'outbox%'`, schema).Scan(&left))
	assert.Zero(t, left)
}
