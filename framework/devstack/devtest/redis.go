package devtest

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/millrace-go/millrace/framework/devstack"
)

// Redis returns a client of the shared Redis, which is closed when the test ends. All tests share its keys: give them a
// prefix of the test's own (Topic).
func Redis(t testing.TB) *redis.Client {
	t.Helper()
	return RedisOn(t, Start(t, devstack.Redis).RedisAddr())
}

// RedisOn is Redis for a server of the test's own.
func RedisOn(t testing.TB, address string) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: address, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}, // else it logs that there are none
	})
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close the Redis client: %v", err)
		}
	})
	return client
}

// RedisServer runs a Redis server of the test's own, for what a shared one must not suffer, and stops it when the test
// ends. A failed test shows the end of its log. The test is skipped, with the reason, where redis-server is not
// installed; MILLRACE_REQUIRE_REAL=redis makes that a failure.
func RedisServer(t testing.TB, cfg devstack.RedisConfig) *devstack.RedisServer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := devstack.StartRedis(ctx, cfg)
	skipAbsent(t, err, string(devstack.Redis))
	return owned(t, server, err)
}
