package outboxadmin

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox"
)

// A change of shards that died refuses producers no longer than it said.
func TestFenceEndsByItself(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	next := func(until string) (n int64, err error) {
		_, err = pool.Exec(t.Context(), pgschema.Render(fencedNext(16, until), schema))
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
