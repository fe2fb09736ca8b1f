package outboxadmin_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
)

// publishLater commits a delayed event and returns its ID.
func (f *fixture) publishLater(key string) string {
	id := outbox.NewID()
	require.NoError(f.t, pgtx.Run(f.t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		msg := message.NewMessageWithContext(ctx, id, []byte("secret"))
		outbox.SetDeliverAfter(msg, time.Hour)
		return f.publisher.Publish("topic", msg)
	}))
	return id
}

func (f *fixture) cancel(id string) (cancelled bool) {
	require.NoError(f.t, pgtx.Run(f.t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) (err error) {
		cancelled, err = f.publisher.Cancel(ctx, id)
		return err
	}))
	return cancelled
}

// A writer sees no event, its own included, and cancels the delayed events that it has written, and those of roles that it is
// a member of. It could once read what every other service publishes, and delete every delayed event.
func TestWriterIsConfined(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	grants := func(r string) outboxadmin.GrantRoles { return outboxadmin.GrantRoles{Writer: r} }
	shop, payments := f.as("_shop", grants), f.as("_payments", grants)
	shop.publish("key", "secret")
	mine, theirs := shop.publishLater("key"), payments.publishLater("key")

	for _, sql := range []string{
		`select payload from {schema}.outbox`,
		`select key from {schema}.outbox`,
		`select headers from {schema}.outbox`,
		`select event_id from {schema}.outbox`,
		`select topic from {schema}.outbox`,
		`select * from {schema}.outbox`,
		`select o from {schema}.outbox o`,
		`copy {schema}.outbox to stdout`,
		`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) select 0, 1, '', '', '', '', '' returning payload`,
		`update {schema}.outbox set payload = ''`,
		`delete from {schema}.outbox`,
		`truncate {schema}.outbox`,
		`select from {schema}.outbox_delayed`,
		`select payload from {schema}.outbox_delayed`,
		`update {schema}.outbox_delayed set due_at = now()`,
		`delete from {schema}.outbox_delayed`,
		`select payload from {schema}.outbox_failed`,
		`select payload from {schema}.outbox_archive`,
		`update {schema}.outbox_shard set relay_id = null`,
		`update {schema}.outbox_layout set shards = 1`,
		`select setval('{schema}.outbox_seq_0', 1)`,
	} {
		_, err := shop.pool.Exec(t.Context(), strings.ReplaceAll(sql, "{schema}", f.schema))
		assert.ErrorContains(t, err, "permission denied", sql)
	}

	assert.False(t, shop.cancel(theirs), "another service's")
	assert.True(t, shop.cancel(mine))
	assert.False(t, shop.cancel(mine), "it is gone")
	member := shop.publishLater("key")
	f.exec(`grant {schema}_shop to {schema}_payments`)
	assert.True(t, payments.cancel(member), "payments is a member of shop")
	assert.True(t, f.cancel(theirs), "the owner of the tables")

	// The fixtures switch to their roles. A service logs in as its role.
	mine, theirs = shop.publishLater("key"), payments.publishLater("key")
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `set local session authorization `+f.schema+`_shop`)
		require.NoError(t, err)
		for id, want := range map[string]bool{mine: true, theirs: false} {
			cancelled, err := f.publisher.Cancel(ctx, id)
			require.NoError(t, err)
			assert.Equal(t, want, cancelled)
		}
		return nil
	}))

	_, err := outboxadmin.InspectBacklog(t.Context(), shop.pool, f.schema)
	require.NoError(t, err)
	full, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema, MaxBacklog: 1})
	require.NoError(t, err)
	require.ErrorIs(t, pgtx.Run(t.Context(), shop.pool, func(ctx context.Context, _ pgx.Tx) error {
		return full.Publish("topic", message.NewMessageWithContext(ctx, outbox.NewID(), nil))
	}), outbox.ErrBacklog)
}

// What runs with its owner's rights finds no table and no function of the caller's.
func TestCancelIgnoresTheCallersSearchPath(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	shop := f.as("_shop", func(r string) outboxadmin.GrantRoles { return outboxadmin.GrantRoles{Writer: r} })
	id := shop.publishLater("key")
	require.NoError(t, pgtx.Run(t.Context(), shop.pool, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `create temp table pg_roles (rolname name, oid oid); create temp table outbox_delayed (event_id text, written_by text);
			set local search_path = pg_temp, pg_catalog`)
		require.NoError(t, err)
		cancelled, err := shop.publisher.Cancel(ctx, id)
		assert.True(t, cancelled)
		return err
	}))
	var settings []string
	require.NoError(t, f.pool.QueryRow(t.Context(), `select proconfig from pg_proc where pronamespace = $1::regnamespace and proname = 'outbox_cancel' and prosecdef`, f.schema).Scan(&settings))
	assert.Contains(t, settings, "search_path=pg_catalog, pg_temp")
}
