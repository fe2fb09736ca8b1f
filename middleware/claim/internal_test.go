package claim

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
)

// Every process must compute the same, whatever its version: these values must never change.
func TestStoredFormat(t *testing.T) {
	assert.Equal(t, int64(4859920555494287482), lockKey("millrace", Key{Consumer: "notify", EventID: "1"}))
	v7 := "0197f3a0-1234-7abc-8def-0123456789ab"
	assert.Equal(t, v7, recordID(v7).String(), "a UUIDv7 is its own record")
	assert.Equal(t, v7, recordID(strings.ToUpper(v7)).String())
	for _, other := range []string{"1", uuid.NewString(), "urn:uuid:" + v7, "{" + v7 + "}"} {
		assert.Equal(t, byte(0xff), recordID(other)[0], other)
	}
	assert.Equal(t, "ff86b273-ff34-fce1-9d6b-804eff5a3f57", recordID("1").String())
}

func TestEveryStatementPrepares(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, schema))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	require.NoError(t, pgschema.Prepare(t.Context(), conn.Conn(), files, schema))
}
