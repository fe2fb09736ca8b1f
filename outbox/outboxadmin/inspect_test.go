package outboxadmin_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, err := outboxadmin.Inspect(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	assert.Equal(t, outboxadmin.Count{}, r.Pending)
	assert.Nil(t, r.Oldest)
	assert.Len(t, r.Shards, 16)

	f.insertFailed()
	f.exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload, created_at)
		select 3, i, 'x', 'a', '', '', '', now() - interval '5 minutes' from generate_series(1, 10005) i`)
	f.exec(`update {schema}.outbox_shard set deaths = array(select gen_random_uuid() from generate_series(1, 2)), suspect = 'x', suspect_deaths = array[gen_random_uuid()] where shard = 3`)
	r, err = outboxadmin.Inspect(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	assert.Equal(t, "≥2000", r.Pending.String(), "counted within bounds")
	assert.InDelta(t, 5*time.Minute, r.Age(r.Oldest), float64(time.Minute))
	assert.Equal(t, map[string]outboxadmin.Count{"dead": {N: 1}, "blocked": {N: 1}, "retrying": {N: 1}, "discarded": {N: 1}}, r.Failed)
	assert.Equal(t, outboxadmin.Count{N: 2}, r.Delayed)
	assert.InDelta(t, -time.Hour, r.At.Sub(*r.NextDue), float64(time.Minute))
	assert.Equal(t, "x", r.Shards[3].Suspect)
	assert.Equal(t, 2, r.Shards[3].UncleanTakeovers)
	require.Len(t, r.Topics, 2)
	assert.Equal(t, outboxadmin.Count{N: 2000, AtLeast: true}, r.Topics[0].Pending)
	assert.Equal(t, outboxadmin.Count{N: 2}, r.Topics[0].Failed, "discarded events hold nothing up")

	f.exec(`delete from {schema}.outbox`)
	f.relay(new(broker), outbox.RelayConfig{})
	eventually(t, "the relay holds the shards", func() bool {
		r, err = outboxadmin.Inspect(t.Context(), f.pool, f.schema)
		require.NoError(t, err)
		return len(r.Relays) == 1 && r.Relays[0].Alive && r.Relays[0].Shards == 16
	})
	assert.True(t, r.Shards[0].Held)
	assert.NotEmpty(t, r.Shards[0].Relay)
	assert.True(t, r.Shards[0].Expires.After(r.At))
}

// A look that takes the server too long is given up, and is no error of the outbox; waiting for a lock is one.
func TestInspectBacklogGivesUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, err := outboxadmin.InspectBacklog(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	assert.Len(t, r.Shards, 16)
	past, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err = outboxadmin.InspectBacklog(past, f.pool, f.schema)
	require.ErrorIs(t, err, outboxadmin.ErrNotCounted)
	f.exec(`alter table {schema}.outbox_shard rename to away; create view {schema}.outbox_shard as select a.* from {schema}.away a, pg_sleep(5)`)
	_, err = outboxadmin.InspectBacklog(t.Context(), f.pool, f.schema)
	require.ErrorIs(t, err, outboxadmin.ErrNotCounted)
	f.exec(`drop view {schema}.outbox_shard; alter table {schema}.away rename to outbox_shard`)
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `lock table `+f.schema+`.outbox_shard`)
	require.NoError(t, err)
	_, err = outboxadmin.InspectBacklog(t.Context(), f.pool, f.schema)
	require.Error(t, err)
	require.NotErrorIs(t, err, outboxadmin.ErrNotCounted)
}

func TestAdministrationOfAMissingOutbox(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := outboxadmin.Inspect(t.Context(), f.pool, f.schema+"x")
	require.ErrorContains(t, err, `run "millrace migrate up" or outbox.Migrate`)
	_, err = outboxadmin.Inspect(t.Context(), f.pool, "no-good")
	require.ErrorContains(t, err, `Schema is "no-good"`)
}
