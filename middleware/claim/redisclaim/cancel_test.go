package redisclaim_test

import (
	"context"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim/claimtest"
	"github.com/millrace-go/millrace/middleware/claim/redisclaim"
)

// endsBehind ends a context when a call of Redis has been answered.
type endsBehind struct{ end context.CancelFunc }

func (endsBehind) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h endsBehind) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && strings.HasPrefix(cmd.Name(), "eval") {
			h.end()
		}
		return err
	}
}

func (endsBehind) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// The context ends when the lock has just been got: what was not run must not look as if it was.
func TestContextEndsBehindTheLock(t *testing.T) {
	t.Parallel()
	client := devtest.RedisOn(t, miniredis.RunT(t).Addr())
	f := claimtest.Postgres(t, devtest.Pool(t), devtest.Schema(t))
	store := newStore(t, client, redisclaim.Config{Record: f.Store})
	ctx, cancel := context.WithCancel(t.Context())
	client.AddHook(endsBehind{cancel})
	require.ErrorIs(t, store.Do(ctx, event, never), context.Canceled)

	ran := 0
	require.NoError(t, store.Do(t.Context(), event, func(context.Context) error { ran++; return nil }))
	assert.Equal(t, 1, ran)
}
