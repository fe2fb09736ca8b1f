package devstack

import (
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/internal/leftover"
)

// A crash loses nothing that was answered, or everything, as its settings have it.
func TestRedisServerCrash(t *testing.T) {
	_, _, err := redisProgram(t.Context())
	needs(t, string(Redis), err)
	for name, test := range map[string]struct {
		settings map[string]string
		left     int64
	}{
		"kept": {nil, 1},
		"lost": {map[string]string{"appendonly": "no"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := scratch(t)
			server, err := StartRedis(t.Context(), RedisConfig{Settings: test.settings})
			require.NoError(t, err)
			t.Logf("%s at %s", server.Source(), server.Address())
			client := redis.NewClient(&redis.Options{Addr: server.Address()})
			defer client.Close()
			require.NoError(t, client.Set(t.Context(), "key", "value", 0).Err())
			require.NoError(t, server.Crash(t.Context()))
			assert.True(t, closed(server.Address()))
			for range 2 {
				require.NoError(t, server.Start(t.Context()))
				left, err := client.Exists(t.Context(), "key").Result()
				require.NoError(t, err)
				assert.Equal(t, test.left, left)
				require.NoError(t, server.Crash(t.Context()))
			}
			require.NoError(t, server.Stop())
			require.NoError(t, server.Stop())
			assert.Empty(t, leftover.In(t, dir))
		})
	}
}

func TestRedisServerFails(t *testing.T) {
	dir := scratch(t)
	_, err := StartRedis(t.Context(), RedisConfig{Settings: map[string]string{"appendonly": "perhaps"}})
	if !errors.Is(err, ErrAbsent) {
		require.ErrorContains(t, err, "argument must be 'yes' or 'no'")
	}
	assert.Empty(t, leftover.In(t, dir))
	t.Setenv("PATH", dir)
	_, err = StartRedis(t.Context(), RedisConfig{})
	require.ErrorIs(t, err, ErrAbsent)
}

// A lock whose holder was killed is free when its time is up, on the fake too.
func TestFakeRedisForgets(t *testing.T) {
	server, err := fakeRedis()
	require.NoError(t, err)
	defer func() { assert.NoError(t, server.stop()) }()
	client := redis.NewClient(&redis.Options{Addr: server.value})
	defer client.Close()
	require.NoError(t, client.Set(t.Context(), "lock", "held", 100*time.Millisecond).Err())
	require.Eventually(t, func() bool { return client.Exists(t.Context(), "lock").Val() == 0 }, time.Minute, 10*time.Millisecond)
}

// A process that stands still for some seconds and goes on must not expire what was set a moment ago.
func TestFakeRedisAfterAPause(t *testing.T) {
	server := miniredis.RunT(t)
	require.NoError(t, server.Set("lock", "held"))
	server.SetTTL("lock", time.Second)
	pass(server, 5*time.Second)
	assert.True(t, server.Exists("lock"))
	for range 10 {
		pass(server, 5*time.Second)
	}
	assert.False(t, server.Exists("lock"))
}
