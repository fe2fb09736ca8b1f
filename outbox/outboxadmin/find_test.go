package outboxadmin_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

func TestFind(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool, schema := f.pool, f.schema
	publish := func(id string, delay time.Duration) {
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
			msg := message.NewMessageWithContext(ctx, id, []byte("x"))
			transport.SetKey(msg, "k")
			msg.Metadata.Set("trace", "t-"+id)
			if delay > 0 {
				outbox.SetDeliverAfter(msg, delay)
			}
			return f.publisher.Publish("topic", msg)
		}))
	}
	find := func(id string) outboxadmin.Location {
		found, err := outboxadmin.Find(t.Context(), pool, schema, id)
		require.NoError(t, err)
		require.Len(t, found, 1)
		return found[0]
	}
	publish("e1", 0)
	publish("e2", 0)
	publish("later", time.Hour)

	at := find("e2")
	assert.Equal(t, "pending", at.State)
	assert.Equal(t, "t-e2", at.Metadata["trace"])
	assert.Equal(t, "k", at.Key)
	assert.EqualValues(t, 1, at.Before.N)
	assert.False(t, at.Held)
	assert.WithinDuration(t, at.Now, at.Written, time.Minute)
	assert.Zero(t, find("e1").Before.N)
	at = find("later")
	assert.Equal(t, "delayed", at.State)
	assert.WithinDuration(t, at.Now.Add(time.Hour), *at.At, time.Minute)

	exec := func(sql string) {
		_, err := pool.Exec(t.Context(), `set search_path to `+schema+`; `+sql)
		require.NoError(t, err)
	}
	exec(`with gone as (delete from outbox where event_id = 'e1' returning *)
		insert into outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
		select (select hash from outbox_delayed where event_id = 'later'), shard, seq, event_id, topic, key, headers, payload, created_at,
			'dead', 3, 'refused' from gone`)
	exec(`update outbox_shard set relay_id = gen_random_uuid(), expires_at = now() + interval '1 minute', suspect = 'e2', suspect_deaths = array(select gen_random_uuid() from generate_series(1, 2))`)
	at = find("e1")
	assert.Equal(t, "dead 3 refused", at.State+" 3 "+at.Reason)
	assert.Zero(t, at.Deaths)
	at = find("e2")
	assert.Equal(t, "e1 dead", at.Behind+" "+at.BehindState)
	assert.True(t, at.Held)
	assert.True(t, at.Suspect)
	assert.Equal(t, 2, at.Deaths)

	found, err := outboxadmin.Find(t.Context(), pool, schema, "nothing")
	require.NoError(t, err)
	assert.Empty(t, found)
}
