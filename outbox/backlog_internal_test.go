package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/pgtx"
)

// During a backup a look at the backlog took seconds, in a business transaction of each publisher, once a second. Now a look
// that takes long is followed by a longer rest, unless publishers are being refused.
func TestSlowLooksAtTheBacklogAreRare(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, schema))
	_, err := pool.Exec(t.Context(), `set search_path to `+schema+`; alter table outbox_shard rename to away;
		create view outbox_shard as select a.* from away a, pg_sleep(0.2)`)
	require.NoError(t, err)
	b := newBacklog(schema, 1000)
	looks := func(at time.Time) bool {
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error { return b.admit(ctx, owner{pgx: tx}, 1, at) }))
		return b.checked.Equal(at)
	}
	now := time.Now()
	assert.True(t, looks(now))
	assert.False(t, looks(now.Add(2*time.Second)))
	assert.True(t, looks(now.Add(time.Hour)))
	b.statement = `select $1::bigint, 7::bigint from pg_sleep(0.2)`
	b.limit = 6
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		assert.ErrorIs(t, b.admit(ctx, owner{pgx: tx}, 1, now.Add(2*time.Hour)), ErrBacklog)
		assert.ErrorIs(t, b.admit(ctx, owner{pgx: tx}, 1, now.Add(2*time.Hour+backlogInterval)), ErrBacklog)
		return nil
	}))
	assert.True(t, b.checked.Equal(now.Add(2*time.Hour+backlogInterval)), "who is refused is told soon that it is over")
}
