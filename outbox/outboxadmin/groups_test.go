package outboxadmin_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// The newest 2,000 events of each state are read, and the sample says that there are more.
func TestSampleGroups(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	fail := func(state, reason string, n int) {
		_, err := f.pool.Exec(t.Context(), `insert into `+f.schema+`.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
			select n, 0, n, $1 || n, 'topic', '', '{}', '', now(), $1, 3, $2 || n from generate_series(1, $3::int) n`, state, reason, n)
		require.NoError(t, err)
	}
	sample := func(states ...string) outboxadmin.Sample {
		found, err := outboxadmin.SampleGroups(t.Context(), f.pool, f.schema, states...)
		require.NoError(t, err)
		return found
	}
	list := func(l outboxadmin.Listing) (ids []string) {
		l.Newest = true
		found, err := outboxadmin.List(t.Context(), f.pool, f.schema, l)
		require.NoError(t, err)
		for _, e := range found {
			ids = append(ids, e.EventID)
		}
		return ids
	}
	fail("dead", "too large: ", 2)
	fail("retrying", "timeout ", 3)
	found := sample("dead", "retrying")
	assert.False(t, found.More)
	require.Len(t, found.Groups, 2)
	assert.Equal(t, "timeout <n>", found.Groups[0].Text)
	assert.Equal(t, []int{3, 0, 3}, []int{found.Groups[0].Events, found.Groups[0].Dead, found.Groups[0].Retrying})
	assert.Equal(t, []string{"dead2", "dead1"}, list(outboxadmin.Listing{Group: found.Groups[1].Group}))
	assert.Equal(t, []string{"retrying3"}, list(outboxadmin.Listing{Limit: 1}))
	assert.Empty(t, list(outboxadmin.Listing{Topic: "other"}))

	fail("dead", "refused ", 2000)
	found = sample("dead")
	assert.True(t, found.More)
	require.Len(t, found.Groups, 1)
	assert.Equal(t, 2000, found.Groups[0].Events)
	assert.Len(t, sample("retrying").Groups, 1)
	_, err := outboxadmin.SampleGroups(t.Context(), f.pool, f.schema, "lost")
	require.ErrorContains(t, err, `state is "lost"`)
}

// An outbox that takes too long to read hides nothing that the other tables have.
func TestFindWithin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.insertFailed()
	f.exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) values (0, 1, 'here', 'topic', '', '{}', '')`)
	var failed string
	require.NoError(t, f.pool.QueryRow(t.Context(), `select event_id from `+f.schema+`.outbox_failed where state = 'dead'`).Scan(&failed))
	find := func(id string, patience time.Duration) (states []string, complete bool) {
		found, complete, err := outboxadmin.FindWithin(t.Context(), f.pool, f.schema, id, patience)
		require.NoError(t, err)
		for _, l := range found {
			states = append(states, l.State)
		}
		return states, complete
	}
	states, complete := find("here", time.Minute)
	assert.True(t, complete)
	assert.Equal(t, []string{"pending"}, states)
	f.exec(`alter table {schema}.outbox rename to away; create view {schema}.outbox as select a.* from {schema}.away a, pg_sleep(60)`)
	states, complete = find(failed, 100*time.Millisecond)
	assert.False(t, complete)
	assert.Equal(t, []string{"dead"}, states)
	states, complete = find("here", 100*time.Millisecond)
	assert.False(t, complete)
	assert.Empty(t, states)
}
