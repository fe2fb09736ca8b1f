package redisclaim

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
)

// Every process must compute the same: these values must never change.
func TestStoredFormat(t *testing.T) {
	assert.Equal(t, "millrace:claim:6:notify:1", keyOf("millrace", claim.Key{Consumer: "notify", EventID: "1"}))
	assert.Equal(t, "p:claim:3:a:b:c", keyOf("p", claim.Key{Consumer: "a:b", EventID: "c"}))
	assert.Equal(t, "p:claim:1:a:b:c", keyOf("p", claim.Key{Consumer: "a", EventID: "b:c"}))
}

// The client repeats a call whose answer was lost with the connection: the second time must say the same.
func TestScriptsMayBeRepeated(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer client.Close()
	keys := []string{"key"}
	for range 2 {
		value, err := acquireScript.Run(t.Context(), client, keys, "held:1", 1000).Text()
		require.NoError(t, err)
		assert.Equal(t, "held:1", value)
	}
	value, err := acquireScript.Run(t.Context(), client, keys, "held:2", 1000).Text()
	require.NoError(t, err)
	assert.Equal(t, "held:1", value)
	for _, test := range []struct {
		token string
		want  bool
	}{{"1", true}, {"1", true}, {"2", false}} {
		completed, err := completeScript.Run(t.Context(), client, keys, "held:"+test.token, "done:"+test.token, 1000).Bool()
		require.NoError(t, err)
		assert.Equal(t, test.want, completed)
	}
}
