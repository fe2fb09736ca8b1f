package outboxadmin_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// Outputs are found by their cause, wherever they are.
func TestFindOutputs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool, schema := f.pool, f.schema
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema, Limits: transport.Limits{MetadataEntries: 2}})
	require.NoError(t, err)
	const cause = `order "1" <é>`
	publish := func(ctx context.Context, id string, delay time.Duration, more ...string) {
		require.NoError(t, pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
			msg := message.NewMessageWithContext(ctx, id, []byte("x"))
			for _, name := range more {
				msg.Metadata.Set(name, "x")
			}
			outbox.SetDeliverAfter(msg, delay)
			return events.Publish("topic", msg)
		}))
	}
	caused := outbox.WithCause(t.Context(), cause)
	publish(caused, "waits", 0)
	publish(caused, "later", time.Hour)
	publish(caused, "sent", 0, outbox.CauseMetadata)
	publish(caused, "full", 0, "one", "two") // no room for the cause
	publish(outbox.WithCause(t.Context(), cause+"0"), "another's", 0)
	publish(t.Context(), "nobody's", 0)
	exec := func(sql string) {
		_, err := pool.Exec(t.Context(), `set search_path to `+schema+`; `+sql)
		require.NoError(t, err)
	}
	exec(`select ` + schema + `.outbox_archive_days('1 hour');
		with gone as (delete from outbox where event_id = 'sent' returning *)
		insert into outbox_archive (shard, seq, event_id, topic, key, headers, payload, created_at)
		select shard, seq, event_id, topic, key, headers, payload, created_at from gone`)
	outputs := func(since time.Time) (states map[string]string) {
		states = map[string]string{}
		found, err := outboxadmin.FindOutputs(t.Context(), pool, schema, cause, since, time.Minute, 10)
		require.NoError(t, err)
		for _, o := range found {
			states[o.EventID] = o.State
			assert.Equal(t, cause, o.Metadata[outbox.CauseMetadata])
			assert.Equal(t, "topic", o.Topic)
		}
		return states
	}
	assert.Equal(t, map[string]string{"waits": "pending", "later": "delayed", "sent": "archived"}, outputs(time.Now().Add(-time.Hour)))
	assert.Equal(t, map[string]string{"waits": "pending", "later": "delayed"}, outputs(time.Now().Add(time.Hour)), "the archive is read from then on")

	exec(`insert into outbox (shard, seq, event_id, topic, key, headers, payload)
		select 0, n, n::text, 'topic', '', convert_to(repeat('x', 500), 'UTF8'), '' from generate_series(1, 100000) n`)
	_, err = outboxadmin.FindOutputs(t.Context(), pool, schema, cause, time.Now(), time.Millisecond, 10)
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	assert.Equal(t, "57014", pgErr.Code)
}
