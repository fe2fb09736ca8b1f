package outboxadmin_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// as returns a fixture whose connections have the rights of a new role.
func (f *fixture) as(roleSuffix string, grants func(role string) outboxadmin.GrantRoles) *fixture {
	role := f.schema + roleSuffix
	f.exec(`create role ` + role)
	f.t.Cleanup(func() { f.exec(`drop owned by ` + role + `; drop role ` + role) })
	sql, err := outboxadmin.Grants(f.schema, grants(role))
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
	f, events := newFixture(t), new(broker)
	writer := f.as("_w", func(r string) outboxadmin.GrantRoles { return outboxadmin.GrantRoles{Writer: r} })
	relay := f.as("_r", func(r string) outboxadmin.GrantRoles { return outboxadmin.GrantRoles{Relay: r} })
	operator := f.as("_o", func(r string) outboxadmin.GrantRoles { return outboxadmin.GrantRoles{Operator: r} })
	denied := func(f *fixture, sql string) {
		_, err := f.pool.Exec(t.Context(), strings.ReplaceAll(sql, "{schema}", f.schema))
		assert.ErrorContains(t, err, "permission denied", sql)
	}

	writer.publish("key", "1")
	denied(writer, `select {schema}.outbox_archive_days('1 day')`)
	denied(writer, `select {schema}.outbox_discard(0::smallint, '{1}', '{e}', '{1}', '')`)

	f.exec(`insert into {schema}.outbox_failed (state, event_id, topic, key, hash, shard, seq, headers, payload, created_at)
		select 'dead', 'failed', 't', 'failed', 7, 7, 1, '{}', convert_to('failed', 'UTF8'), now()`)
	relay.relay(events, outbox.RelayConfig{})
	relay.exec(`select {schema}.outbox_archive_days('1 day')`)
	eventually(t, "it is published", func() bool { return events.Load() == 1 })
	denied(relay, `truncate {schema}.outbox`)
	denied(relay, `update {schema}.outbox_layout set shards = 1`)

	n, err := outboxadmin.Retry(t.Context(), operator.pool, f.schema, outboxadmin.Selection{EventIDs: []string{"failed"}}, me)
	require.NoError(t, err)
	assert.EqualValues(t, 1, n)
	eventually(t, "the relay carries it out", func() bool { return events.Load() == 2 && f.rows() == 0 })
	_, err = outboxadmin.Inspect(t.Context(), operator.pool, f.schema)
	require.NoError(t, err)
	_, err = outboxadmin.List(t.Context(), operator.pool, f.schema, outboxadmin.Listing{Payload: true})
	require.NoError(t, err)
	findings, err := outboxadmin.Check(t.Context(), operator.pool, f.schema, false)
	require.NoError(t, err)
	assert.Empty(t, findings)
	_, err = outboxadmin.Check(t.Context(), operator.pool, f.schema, true)
	require.ErrorContains(t, err, "this is for the owner of the tables")
	denied(operator, `delete from {schema}.outbox_failed`)
	denied(operator, `delete from {schema}.outbox`)
	denied(operator, `update {schema}.outbox_failed set state = 'discarded'`)
	denied(operator, `select nextval('{schema}.outbox_seq_0')`)

	require.NoError(t, outboxadmin.ChangeShards(t.Context(), f.pool, f.schema, 64, nil))
	for i := range 100 {
		writer.publish("key "+strconv.Itoa(i), "x")
	}
	eventually(t, "all shards are written and read", func() bool { return events.Load() == 102 && f.rows() == 0 })
	_, err = outboxadmin.Check(t.Context(), operator.pool, f.schema, false)
	require.NoError(t, err)
	var owners int
	require.NoError(t, f.pool.QueryRow(t.Context(), `select count(distinct relowner) from pg_class where relnamespace = $1::regnamespace`, f.schema).Scan(&owners))
	assert.Equal(t, 1, owners)

	_, err = outboxadmin.Grants("no-good", outboxadmin.GrantRoles{})
	require.ErrorContains(t, err, `Schema is "no-good"`)
}
