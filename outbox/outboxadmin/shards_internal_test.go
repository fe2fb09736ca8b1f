package outboxadmin

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/internal/shardsql"
)

// A change of shards that died refuses producers no longer than it said.
func TestFenceEndsByItself(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	next := func(until string) (n int64, err error) {
		_, err = pool.Exec(t.Context(), pgschema.Render(shardsql.Fenced(16, until), schema))
		require.NoError(t, err)
		return n, pool.QueryRow(t.Context(), pgschema.Render(`select {schema}.outbox_next(3::smallint)`, schema)).Scan(&n)
	}
	_, err := next("2999-01-01 00:00+00")
	require.ErrorContains(t, err, "55006")
	_, err = next("2001-01-01 00:00+00")
	require.NoError(t, err)

	found, err := Check(t.Context(), pool, schema, false)
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.True(t, found[0].Note)
	assert.Contains(t, found[0].Text, `"millrace outbox shards 16" finishes it`)
	require.NoError(t, ChangeShards(t.Context(), pool, schema, 16, nil))
	found, err = Check(t.Context(), pool, schema, false)
	require.NoError(t, err)
	assert.Empty(t, found)

	// It is the very function that the migration makes.
	var ours, theirs string
	source := `select prosrc from pg_proc where oid = $1::regprocedure`
	require.NoError(t, pool.QueryRow(t.Context(), source, schema+".outbox_next(smallint)").Scan(&ours))
	other := devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, other))
	require.NoError(t, pool.QueryRow(t.Context(), source, other+".outbox_next(smallint)").Scan(&theirs))
	assert.Equal(t, strings.ReplaceAll(theirs, other, schema), ours)
}

// A change ended after the number had changed, and relays may not have learned of it. The same change, made again, lets producers on only
// when they have.
func TestRepeatedChangeWaitsForRelays(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	_, err := pool.Exec(t.Context(), pgschema.Render(shardsql.Fenced(16, "2999-01-01 00:00+00"), schema))
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), pgschema.Render(
		`insert into {schema}.outbox_relay (relay_id, expires_at) values (gen_random_uuid(), clock_timestamp() + interval '3 seconds')`, schema))
	require.NoError(t, err)
	var fenced bool
	require.NoError(t, ChangeShards(t.Context(), pool, schema, 16, func(text string) {
		assert.Equal(t, "there are 16 shards; waiting for relays to learn of it, and refusing producers meanwhile", text)
		_, err := pool.Exec(t.Context(), pgschema.Render(`select {schema}.outbox_next(3::smallint)`, schema))
		fenced = isFence(err)
	}))
	assert.True(t, fenced)
	var expired bool
	require.NoError(t, pool.QueryRow(t.Context(), pgschema.Render(`select expires_at <= clock_timestamp() from {schema}.outbox_relay`, schema)).Scan(&expired))
	assert.True(t, expired, "the relay remembers the former shards until then")
	_, err = pool.Exec(t.Context(), pgschema.Render(`select {schema}.outbox_next(3::smallint)`, schema))
	require.NoError(t, err)
}

func isFence(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "55006"
}
