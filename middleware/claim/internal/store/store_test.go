package store

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
)

// Every process must compute the same, whatever its version: these values must never change.
func TestStoredFormat(t *testing.T) {
	assert.Equal(t, int64(4859920555494287482), Key{Consumer: "notify", EventID: "1"}.Lock("millrace"))
	id := func(eventID string, due time.Time) string {
		return Key{EventID: eventID, Due: due}.Record().String()
	}
	v7, minted := "0197f3a0-1234-7abc-8def-0123456789ab", time.UnixMilli(0x0197f3a01234)
	assert.Equal(t, v7, id(v7, time.Time{}), "a UUIDv7 is its own record")
	assert.Equal(t, v7, id(strings.ToUpper(v7), time.Time{}))
	for _, other := range []string{"1", uuid.NewString(), "urn:uuid:" + v7, "{" + v7 + "}", "ff" + v7[2:]} {
		assert.Equal(t, byte(0xff), Key{EventID: other}.Record().Bytes[0], other)
		_, known := Key{EventID: other}.Minted()
		assert.False(t, known, other)
	}
	assert.Equal(t, "ff86b273-ff34-fce1-9d6b-804eff5a3f57", id("1", time.Time{}))
	assert.Equal(t, "ff86b273-ff34-fce1-9d6b-804eff5a3f57", id("1", minted), "what has no time of its own is found by its hash")

	assert.Equal(t, v7, id(v7, minted), "it was due at once")
	assert.Equal(t, v7, id(v7, minted.Add(-time.Hour)))
	assert.Equal(t, "0197f8c6-6e34-34af-6b68-0735d1a7528c", id(v7, minted.Add(24*time.Hour)), "the broker gets a delayed event only then")
	for due, want := range map[time.Time]time.Time{{}: minted, minted.Add(time.Hour): minted.Add(time.Hour)} {
		got, known := Key{EventID: v7, Due: due}.Minted()
		assert.True(t, known)
		assert.True(t, got.Equal(want))
	}
}

func TestEveryStatementPrepares(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	m, err := Migrations.In(pool, schema)
	require.NoError(t, err)
	require.NoError(t, m.Up(t.Context()))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	require.NoError(t, pgschema.Prepare(t.Context(), conn.Conn(), Files, schema))
}
