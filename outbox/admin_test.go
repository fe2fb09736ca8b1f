package outbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

func (f *fixture) exec(sql string) {
	_, err := f.pool.Exec(context.Background(), strings.ReplaceAll(sql, "{schema}", f.schema))
	require.NoError(f.t, err)
}

// aside fills the side tables: two keys that wait behind a dead and a retrying event, a discarded one, two delayed ones.
func (f *fixture) aside() {
	f.exec(`insert into {schema}.outbox_failed (state, event_id, topic, key, hash, shard, seq, headers, payload, created_at, attempts, reason, failed_at, retry_at)
		select state, id, topic, key, 7, 7, 1, '{}', convert_to(id, 'UTF8'), now() - interval '1 hour', 3, 'refused', now() - interval '2 days',
			case state when 'retrying' then now() + interval '1 hour' end
		from (values ('dead', 'e1', 'a', 'k1'), ('blocked', 'e2', 'b', 'k1'), ('retrying', 'e3', 'a', 'k2'), ('discarded', 'e4', 'a', 'k3')) v (state, id, topic, key)`)
	f.exec(`insert into {schema}.outbox_delayed (due_at, hash, event_id, topic, key, headers, payload)
		select now() + i * interval '1 hour', 7, 'd' || i, 'a', 'k4', '{}', '' from generate_series(1, 2) i`)
}

func TestInspect(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	r, err := outbox.Inspect(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	assert.Equal(t, outbox.Count{}, r.Pending)
	assert.Nil(t, r.Oldest)
	assert.Len(t, r.Shards, 16)

	f.aside()
	f.exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload, created_at)
		select 3, i, 'x', 'a', '', '', '', now() - interval '5 minutes' from generate_series(1, 10005) i`)
	f.exec(`update {schema}.outbox_shard set strikes = 2, suspect = 'x', attempts = 1 where shard = 3`)
	r, err = outbox.Inspect(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	assert.Equal(t, "≥10000", r.Pending.String(), "counted within bounds")
	assert.InDelta(t, 5*time.Minute, r.Age(r.Oldest), float64(time.Minute))
	assert.Equal(t, map[string]outbox.Count{"dead": {N: 1}, "blocked": {N: 1}, "retrying": {N: 1}, "discarded": {N: 1}}, r.Failed)
	assert.Equal(t, outbox.Count{N: 2}, r.Delayed)
	assert.InDelta(t, -time.Hour, r.At.Sub(*r.NextDue), float64(time.Minute))
	assert.Equal(t, "x", r.Shards[3].Suspect)
	assert.Equal(t, 2, r.Shards[3].Strikes)
	require.Len(t, r.Topics, 2)
	assert.EqualValues(t, 10000, r.Topics[0].Pending)
	assert.EqualValues(t, 2, r.Topics[0].Failed, "the dead hold nothing up")

	f.exec(`delete from {schema}.outbox`)
	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{}))
	eventually(t, "the relay holds the shards", func() bool {
		r, err = outbox.Inspect(t.Context(), f.pool, f.schema)
		require.NoError(t, err)
		return len(r.Relays) == 1 && r.Relays[0].Alive && r.Relays[0].Shards == 16
	})
	assert.True(t, r.Shards[0].Held)
	assert.NotEmpty(t, r.Shards[0].Relay)
	assert.True(t, r.Shards[0].Expires.After(r.At))
}

// A look that takes the server too long is given up, and is no error of the outbox; waiting for a lock is one.
func TestGlanceGivesUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, err := outbox.Glance(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	assert.Len(t, r.Shards, 16)
	f.exec(`alter table {schema}.outbox_shard rename to away; create view {schema}.outbox_shard as select a.* from {schema}.away a, pg_sleep(5)`)
	_, err = outbox.Glance(t.Context(), f.pool, f.schema)
	require.ErrorIs(t, err, outbox.ErrNotCounted)
	f.exec(`drop view {schema}.outbox_shard; alter table {schema}.away rename to outbox_shard`)
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `lock table `+f.schema+`.outbox_shard`)
	require.NoError(t, err)
	_, err = outbox.Glance(t.Context(), f.pool, f.schema)
	require.Error(t, err)
	require.NotErrorIs(t, err, outbox.ErrNotCounted)
}

func TestListAndCommands(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.aside()
	list := func(l outbox.Listing) string {
		found, err := outbox.List(t.Context(), f.pool, f.schema, l)
		require.NoError(t, err)
		var ids strings.Builder
		for _, e := range found {
			ids.WriteString(e.EventID + e.Command + " ")
		}
		return ids.String()
	}
	assert.Equal(t, "e1 e2 e3 e4 d1 d2 ", list(outbox.Listing{}))
	assert.Equal(t, "e1 e2 ", list(outbox.Listing{Limit: 2}))
	assert.Equal(t, "e3 e4 d1 d2 ", list(outbox.Listing{States: []string{"retrying", "discarded", "delayed"}}))
	assert.Equal(t, "e1 ", list(outbox.Listing{Topic: "a", Key: "k1"}))
	_, err := outbox.List(t.Context(), f.pool, f.schema, outbox.Listing{States: []string{"lost"}})
	require.ErrorContains(t, err, `state is "lost": want one of`)
	found, err := outbox.List(t.Context(), f.pool, f.schema, outbox.Listing{Key: "k1", Payload: true})
	require.NoError(t, err)
	assert.Equal(t, "e1", string(found[0].Payload))
	assert.Equal(t, "refused", found[0].Reason)

	conn, err := f.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `listen "`+f.schema+`_outbox"`)
	require.NoError(t, err)
	for _, c := range []struct {
		do        func(context.Context, pgtx.DB, string, outbox.Selection) (int64, error)
		selection outbox.Selection
		n         int64
		want      string
	}{
		{outbox.Requeue, outbox.Selection{EventIDs: []string{"e1", "e2", "nobody"}}, 1, "e1retry e2 e3 e4 "},
		{outbox.Requeue, outbox.Selection{}, 3, "e1retry e2 e3retry e4retry "},
		{outbox.Discard, outbox.Selection{Key: "k1"}, 2, "e1discard e2discard e3 e4 "},
		{outbox.Discard, outbox.Selection{Topic: "a"}, 2, "e1discard e2 e3discard e4 "},
		{outbox.Discard, outbox.Selection{Topic: "nothing"}, 0, "e1 e2 e3 e4 "},
	} {
		n, err := c.do(t.Context(), f.pool, f.schema, c.selection)
		require.NoError(t, err)
		assert.Equal(t, c.n, n)
		assert.Equal(t, c.want, list(outbox.Listing{States: []string{"dead", "blocked", "retrying", "discarded"}}))
		f.exec(`update {schema}.outbox_failed set command = null`)
		if c.n > 0 {
			told, err := conn.Conn().WaitForNotification(t.Context())
			require.NoError(t, err)
			assert.Empty(t, told.Payload, "every shard is meant")
		}
	}

	n, err := outbox.Purge(t.Context(), f.pool, f.schema, 72*time.Hour)
	require.NoError(t, err)
	assert.Zero(t, n)
	n, err = outbox.Purge(t.Context(), f.pool, f.schema, 24*time.Hour)
	require.NoError(t, err)
	assert.EqualValues(t, 1, n)
	assert.Equal(t, "e1 e2 e3 d1 d2 ", list(outbox.Listing{}))
}

func TestExamine(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	examine := func(fix bool) []outbox.Finding {
		found, err := outbox.Examine(t.Context(), f.pool, f.schema, fix)
		require.NoError(t, err)
		return found
	}
	f.publish("key", "payload")
	assert.Empty(t, examine(false))
	f.exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) select 6, 100, 'x', 't', '', '', ''`)
	found := examine(false)
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Text, `the sequence of shard 6 is at 0, below number 100 of an existing event`)
	found = examine(true)
	require.Len(t, found, 1)
	assert.True(t, found[0].Fixed)
	assert.Empty(t, examine(false))
	var next int64
	require.NoError(t, f.pool.QueryRow(t.Context(), `select `+f.schema+`.outbox_next(6::smallint)`).Scan(&next))
	assert.EqualValues(t, 101, next)

	f.exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) select 16, 1, 'x', 't', '', '', ''`)
	found = examine(true)
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Text, "events in shards that do not exist, which no relay publishes: 1;")
	assert.False(t, found[0].Fixed)
	f.exec(`delete from {schema}.outbox; drop sequence {schema}.outbox_seq_15`)
	found = examine(false)
	require.Len(t, found, 2)
	assert.Contains(t, found[0].Text, `16 in the function, 15 sequences; run "millrace outbox shards 16"`)
	assert.Contains(t, found[1].Text, "shard 15 has no sequence")
	require.NoError(t, outbox.ChangeShards(t.Context(), f.pool, f.schema, 16, nil))
	assert.Empty(t, examine(false))
}

func TestAdministrationOfAMissingOutbox(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := outbox.Inspect(t.Context(), f.pool, f.schema+"x")
	require.ErrorContains(t, err, `run "millrace migrate up" or outbox.Migrate`)
	_, err = outbox.Inspect(t.Context(), f.pool, "no-good")
	require.ErrorContains(t, err, `Schema is "no-good"`)
}

// as returns a fixture whose connections have the rights of a new role.
func (f *fixture) as(roleSuffix string, grants func(role string) outbox.GrantRoles) *fixture {
	role := f.schema + roleSuffix
	f.exec(`create role ` + role)
	f.t.Cleanup(func() { f.exec(`drop owned by ` + role + `; drop role ` + role) })
	sql, err := outbox.Grants(f.schema, grants(role))
	require.NoError(f.t, err)
	f.exec(sql)
	cfg := f.pool.Config()
	cfg.ConnConfig.RuntimeParams["role"] = role
	pool, err := pgxpool.NewWithConfig(f.t.Context(), cfg)
	require.NoError(f.t, err)
	f.t.Cleanup(pool.Close)
	return &fixture{t: f.t, pool: pool, schema: f.schema, publisher: f.publisher}
}

// Each role can do its work and nothing else, also after a change of the number of shards.
func TestGrants(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	writer := f.as("_w", func(r string) outbox.GrantRoles { return outbox.GrantRoles{Writer: r} })
	relay := f.as("_r", func(r string) outbox.GrantRoles { return outbox.GrantRoles{Relay: r} })
	operator := f.as("_o", func(r string) outbox.GrantRoles { return outbox.GrantRoles{Operator: r} })
	denied := func(f *fixture, sql string) {
		_, err := f.pool.Exec(t.Context(), strings.ReplaceAll(sql, "{schema}", f.schema))
		assert.ErrorContains(t, err, "permission denied", sql)
	}

	writer.publish("key", "1")
	writer.exec(`insert into {schema}.outbox_delayed (due_at, hash, event_id, topic, key, headers, payload) select now(), 1, 'd', 't', '', '{}', '';
		delete from {schema}.outbox_delayed where event_id = 'd'`)
	denied(writer, `delete from {schema}.outbox`)
	denied(writer, `select from {schema}.outbox_failed`)
	denied(writer, `update {schema}.outbox_shard set strikes = 0`)
	denied(writer, `select {schema}.outbox_archive_days('1 day')`)

	f.exec(`insert into {schema}.outbox_failed (state, event_id, topic, key, hash, shard, seq, headers, payload, created_at)
		select 'dead', 'failed', 't', 'failed', 7, 7, 1, '{}', convert_to('failed', 'UTF8'), now()`)
	relay.run(relay.newRelay(batchRecorder{broker}, outbox.RelayConfig{LeaseTTL: time.Second}))
	relay.exec(`select {schema}.outbox_archive_days('1 day')`)
	eventually(t, "it is published", func() bool { return broker.count() == 1 })
	denied(relay, `truncate {schema}.outbox`)
	denied(relay, `update {schema}.outbox_layout set shards = 1`)

	n, err := outbox.Requeue(t.Context(), operator.pool, f.schema, outbox.Selection{EventIDs: []string{"failed"}})
	require.NoError(t, err)
	assert.EqualValues(t, 1, n)
	eventually(t, "the relay carries it out", func() bool { return broker.count() == 2 && f.rows() == 0 })
	_, err = outbox.Inspect(t.Context(), operator.pool, f.schema)
	require.NoError(t, err)
	_, err = outbox.List(t.Context(), operator.pool, f.schema, outbox.Listing{Payload: true})
	require.NoError(t, err)
	findings, err := outbox.Examine(t.Context(), operator.pool, f.schema, false)
	require.NoError(t, err)
	assert.Empty(t, findings)
	_, err = outbox.Examine(t.Context(), operator.pool, f.schema, true)
	require.ErrorContains(t, err, "this is for the owner of the tables")
	denied(operator, `delete from {schema}.outbox_failed`)
	denied(operator, `update {schema}.outbox_failed set state = 'discarded'`)
	denied(operator, `select nextval('{schema}.outbox_seq_0')`)

	require.NoError(t, outbox.ChangeShards(t.Context(), f.pool, f.schema, 64, nil))
	writer.publishMany(topic, 100, func(i int) string { return strings.Repeat("x", i) })
	eventually(t, "all shards are written and read", func() bool { return broker.count() == 102 && f.rows() == 0 })
	_, err = outbox.Examine(t.Context(), operator.pool, f.schema, false)
	require.NoError(t, err)
	var owners int
	require.NoError(t, f.pool.QueryRow(t.Context(), `select count(distinct relowner) from pg_class where relnamespace = $1::regnamespace`, f.schema).Scan(&owners))
	assert.Equal(t, 1, owners)

	_, err = outbox.Grants("no-good", outbox.GrantRoles{})
	require.ErrorContains(t, err, `Schema is "no-good"`)
}
