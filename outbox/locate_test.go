package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

func TestLocate(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	require.NoError(t, err)
	publish := func(id string, delay time.Duration) {
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
			msg := message.NewMessageWithContext(ctx, id, []byte("x"))
			transport.SetKey(msg, "k")
			msg.Metadata.Set("trace", "t-"+id)
			if delay > 0 {
				outbox.SetDeliverAfter(msg, delay)
			}
			return events.Publish("topic", msg)
		}))
	}
	locate := func(id string) outbox.Location {
		found, err := outbox.Locate(t.Context(), pool, schema, id)
		require.NoError(t, err)
		require.Len(t, found, 1)
		return found[0]
	}
	publish("e1", 0)
	publish("e2", 0)
	publish("later", time.Hour)

	at := locate("e2")
	assert.Equal(t, "pending", at.State)
	assert.Equal(t, "t-e2", at.Metadata["trace"])
	assert.Equal(t, "k", at.Key)
	assert.EqualValues(t, 1, at.Before.N)
	assert.False(t, at.Held)
	assert.WithinDuration(t, at.Now, at.Written, time.Minute)
	assert.Zero(t, locate("e1").Before.N)
	at = locate("later")
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
	exec(`update outbox_shard set relay_id = gen_random_uuid(), expires_at = now() + interval '1 minute', suspect = 'e2', attempts = 2`)
	at = locate("e1")
	assert.Equal(t, "dead 3 refused", at.State+" 3 "+at.Reason)
	assert.Zero(t, at.Deaths)
	at = locate("e2")
	assert.Equal(t, "e1 dead", at.Behind+" "+at.BehindState)
	assert.True(t, at.Held)
	assert.True(t, at.Suspect)
	assert.Equal(t, 2, at.Deaths)

	found, err := outbox.Locate(t.Context(), pool, schema, "nothing")
	require.NoError(t, err)
	assert.Empty(t, found)
}
