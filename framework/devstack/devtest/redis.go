package devtest

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/millrace-go/millrace/framework/devstack"
)

// Redis returns a client of the shared Redis, which is closed when the test ends. All tests share its keys: use a prefix of the test's
// own (Topic).
func Redis(t testing.TB) *redis.Client {
	t.Helper()
	return RedisOn(t, Start(t, devstack.Redis).RedisAddr())
}

// RedisOn is Redis for a server of the test's own.
func RedisOn(t testing.TB, address string) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: address, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}, // otherwise the client logs that the server has none
	})
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close the Redis client: %v", err)
		}
	})
	return client
}

// RedisServer runs a Redis server for this test alone, for tests that would disturb a shared one, and stops it when the test ends. If the
// test fails, the end of its log is shown. If redis-server is not installed, the test is skipped with that reason;
// MILLRACE_REQUIRE_REAL=redis makes that a failure.
func RedisServer(t testing.TB, cfg devstack.RedisConfig) *devstack.RedisServer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := devstack.StartRedis(ctx, cfg)
	skipAbsent(t, err, string(devstack.Redis))
	return owned(t, server, err)
}
