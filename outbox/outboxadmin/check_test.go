package outboxadmin_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	check := func(fix bool) []outboxadmin.Finding {
		found, err := outboxadmin.Check(t.Context(), f.pool, f.schema, fix)
		require.NoError(t, err)
		return found
	}
	f.publish("key", "payload")
	assert.Empty(t, check(false))
	f.exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) select 6, 100, 'x', 't', '', '', ''`)
	found := check(false)
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Text, `the sequence of shard 6 is at 0, below number 100 of an existing event`)
	found = check(true)
	require.Len(t, found, 1)
	assert.True(t, found[0].Fixed)
	assert.Empty(t, check(false))
	var next int64
	require.NoError(t, f.pool.QueryRow(t.Context(), `select `+f.schema+`.outbox_next(6::smallint)`).Scan(&next))
	assert.EqualValues(t, 101, next)

	f.exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) select 16, 1, 'x', 't', '', '', ''`)
	found = check(true)
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Text, "events in shards that do not exist, which no relay publishes: 1;")
	assert.False(t, found[0].Fixed)
	f.exec(`delete from {schema}.outbox; drop sequence {schema}.outbox_seq_15`)
	found = check(false)
	require.Len(t, found, 2)
	assert.Contains(t, found[0].Text, `16 in the function, 15 sequences; run "millrace outbox shards 16"`)
	assert.Contains(t, found[1].Text, "shard 15 has no sequence")
	require.NoError(t, outboxadmin.ChangeShards(t.Context(), f.pool, f.schema, 16, nil))
	assert.Empty(t, check(false))
}
