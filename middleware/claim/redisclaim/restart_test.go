package redisclaim_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim/claimtest"
	"github.com/millrace-go/millrace/middleware/claim/redisclaim"
)

// Redis crashes while handlers run, with all that it held or with nothing, and starts again: no effect is lost, and with a
// record none is doubled.
func TestRedisRestarts(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]map[string]string{
		"keeps everything": nil,
		"loses everything": {"appendonly": "no"},
	} {
		for store, fixture := range map[string]func(*testing.T, redis.UniversalClient, redisclaim.Config) claimtest.Fixture{
			"alone": alone, "in front of a record": inFront,
		} {
			t.Run(store+", "+name, func(t *testing.T) {
				t.Parallel()
				server := devtest.RedisServer(t, devstack.RedisConfig{Settings: settings})
				f := fixture(t, devtest.RedisOn(t, server.Address()), redisclaim.Config{TTL: time.Second})
				f.Events = 1000
				f.Effect = crashing(t, server, f.Effect, 300, 600)
				effects := claimtest.Race(t, f)
				assert.Len(t, effects, f.Events)
				doubled := 0
				for _, n := range effects {
					if n > 1 {
						doubled++
					}
				}
				t.Logf("%d of %d effects doubled", doubled, len(effects))
				if f.Transactional {
					assert.Zero(t, doubled)
				}
			})
		}
	}
}

// crashing is the effect, in whose middle the server crashes and starts again at the numbered calls.
func crashing(t *testing.T, server *devstack.RedisServer, effect func(context.Context, string) error, at ...int64) func(context.Context, string) error {
	var calls atomic.Int64
	return func(ctx context.Context, id string) error {
		if err := effect(ctx, id); err != nil {
			return err
		}
		n := calls.Add(1)
		for _, crash := range at {
			if n == crash {
				require.NoError(t, server.Crash(t.Context()))
				require.NoError(t, server.Start(t.Context()))
			}
		}
		return nil
	}
}
