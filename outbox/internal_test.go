package outbox

import (
	"strconv"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
)

func TestPlanKeepsTheOrderOfKeysAcrossTopics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40).Draw(t, "rows")
		rows := make([]row, n)
		for i := range rows {
			rows[i] = row{
				seq:   int64(i),
				key:   rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "key"),
				topic: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "topic"),
			}
		}
		var planned int
		last := map[string]row{}     // by key, in the order of waves
		lastWave := map[string]int{} // by key
		for w, wave := range plan(rows) {
			require.NotEmpty(t, wave)
			topics := map[string]bool{}
			for _, g := range wave {
				require.False(t, topics[g.topic], "one group per topic")
				topics[g.topic] = true
				for i, e := range g.rows {
					planned++
					require.Equal(t, g.topic, e.topic)
					require.True(t, i == 0 || g.rows[i-1].seq < e.seq, "a group is in order")
					if e.key == "" {
						continue
					}
					if before, ok := last[e.key]; ok {
						require.Less(t, before.seq, e.seq, "a key is in order")
						require.True(t, lastWave[e.key] < w || before.topic == e.topic, "groups of one wave are sent at once")
					}
					last[e.key], lastWave[e.key] = e, w
				}
			}
		}
		require.Equal(t, n, planned)
	})
}

func TestFailing(t *testing.T) {
	now := time.Now()
	keyed, free := row{key: "k", eventID: "1"}, row{eventID: "2"}
	var f failing
	_, ok := f.next(now)
	assert.False(t, ok)
	for i, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		wait, attempt := f.note(keyed, now)
		assert.Equal(t, want*time.Millisecond, wait)
		assert.Equal(t, i+1, attempt)
	}
	f.note(free, now)
	ids, keys, full := f.excluded(now)
	assert.Equal(t, []string{"2"}, ids)
	assert.Equal(t, []string{"k"}, keys)
	assert.False(t, full)
	next, ok := f.next(now)
	assert.True(t, ok)
	assert.Equal(t, 100*time.Millisecond, next)

	ids, keys, _ = f.excluded(now.Add(time.Second))
	assert.Empty(t, ids)
	assert.Equal(t, []string{"k"}, keys)
	f.clear(keyed)
	_, keys, _ = f.excluded(now)
	assert.Empty(t, keys)
	wait, attempt := f.note(keyed, now)
	assert.Equal(t, firstBackoff, wait, "it begins anew after a success")
	assert.Equal(t, 1, attempt)

	for i := range maxFailing {
		f.note(row{eventID: strconv.Itoa(i)}, now)
	}
	_, _, full = f.excluded(now)
	assert.True(t, full)
	f.excluded(now.Add(time.Hour))
	assert.Empty(t, f.ids, "what is long past is forgotten")
}

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

	for _, name := range []string{"002_complete", "001_outbox"} {
		down, err := files.ReadFile("migrations/" + name + ".down.sql")
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), pgschema.Render(string(down), schema))
		require.NoError(t, err)
	}
	var left int
	require.NoError(t, pool.QueryRow(t.Context(), `select count(*) from pg_class where relnamespace = $1::regnamespace and relname like 'outbox%'`, schema).Scan(&left))
	assert.Zero(t, left)
}
