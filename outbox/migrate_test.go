package outbox

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
)

func TestDownKeepsWhatIsNotPublished(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	m, err := Migrations(pool, schema)
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

// A change of shards that died refuses producers no longer than it said.
func TestFenceEndsByItself(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, schema))
	next := func(until string) (n int64, err error) {
		_, err = pool.Exec(t.Context(), pgschema.Render(fencedNext(16, until), schema))
		require.NoError(t, err)
		return n, pool.QueryRow(t.Context(), pgschema.Render(`select {schema}.outbox_next(3::smallint)`, schema)).Scan(&n)
	}
	_, err := next("2999-01-01 00:00+00")
	require.ErrorContains(t, err, "55006")
	_, err = next("2001-01-01 00:00+00")
	require.NoError(t, err)

	found, err := Examine(t.Context(), pool, schema, false)
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.True(t, found[0].Note)
	assert.Contains(t, found[0].Text, `"millrace outbox shards 16" finishes it`)
	require.NoError(t, ChangeShards(t.Context(), pool, schema, 16, nil))
	found, err = Examine(t.Context(), pool, schema, false)
	require.NoError(t, err)
	assert.Empty(t, found)

	// It is the very function that the migration makes.
	var ours, theirs string
	source := `select prosrc from pg_proc where oid = $1::regprocedure`
	require.NoError(t, pool.QueryRow(t.Context(), source, schema+".outbox_next(smallint)").Scan(&ours))
	other := devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, other))
	require.NoError(t, pool.QueryRow(t.Context(), source, other+".outbox_next(smallint)").Scan(&theirs))
	assert.Equal(t, strings.ReplaceAll(theirs, other, schema), ours)
}
