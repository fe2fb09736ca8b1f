package redisclaim_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/claim/claimtest"
	"github.com/millrace-go/millrace/middleware/claim/redisclaim"
)

var (
	errOops = errors.New("oops")
	event   = claim.Key{Consumer: "notify", EventID: "1"}
)

const (
	eventKey = "millrace:claim:6:notify:1"

	waitFor = time.Minute
	tick    = 2 * time.Millisecond
)

// fake is a Redis of the test's own, whose clock the test moves, and a store on it.
func fake(t *testing.T, cfg redisclaim.Config) (*miniredis.Miniredis, *redisclaim.Store) {
	t.Helper()
	server := miniredis.RunT(t)
	return server, newStore(t, devtest.RedisOn(t, server.Addr()), cfg)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	client := devtest.RedisOn(t, "127.0.0.1:1")
	_, err := redisclaim.New(nil, redisclaim.Config{TTL: time.Millisecond, Retention: -1, Publisher: &tally{}, Record: &claim.PostgresStore{}})
	for _, problem := range []string{
		"client is nil", "Config.TTL is 1ms: want 100ms or more", "Config.Retention is -1ns: want at least Config.TTL", "Config.Publisher is set beside Config.Record",
	} {
		assert.ErrorContains(t, err, problem)
	}
	for _, deaf := range []redis.UniversalClient{
		redis.NewClient(&redis.Options{}), redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}),
		redis.NewRing(&redis.RingOptions{}),
	} {
		_, err = redisclaim.New(deaf, redisclaim.Config{})
		assert.ErrorContains(t, err, "ContextTimeoutEnabled is false: want true")
		require.NoError(t, deaf.Close())
	}
	store := newStore(t, client, redisclaim.Config{})
	assert.Nil(t, store.Unwrap())
	record := claim.NewPostgresStore(nil)
	assert.Same(t, record, newStore(t, client, redisclaim.Config{Record: record}).Unwrap())
}

// What the key holds, and for how long.
func TestLockAndMarker(t *testing.T) {
	t.Parallel()
	server, store := fake(t, redisclaim.Config{TTL: time.Minute, Retention: time.Hour})
	_, end := holding(t, store, event)
	held, err := server.Get(eventKey)
	require.NoError(t, err)
	assert.Regexp(t, `^held:[A-Z2-7]{26}$`, held)
	assert.Equal(t, time.Minute, server.TTL(eventKey))
	require.NoError(t, end(nil))
	marker, err := server.Get(eventKey)
	require.NoError(t, err)
	assert.Equal(t, strings.Replace(held, "held", "done", 1), marker)
	assert.Equal(t, time.Hour, server.TTL(eventKey))

	server.FastForward(time.Hour - time.Millisecond)
	require.ErrorIs(t, store.Do(t.Context(), event, never), claim.ErrCompleted)
	server.FastForward(time.Millisecond)
	_, end = holding(t, store, event)
	require.ErrorIs(t, end(errOops), errOops)
	assert.Empty(t, server.Keys(), "a failed event leaves nothing")
}

func TestHeartbeatKeepsTheLock(t *testing.T) {
	t.Parallel()
	const ttl = 600 * time.Millisecond
	server, store := fake(t, redisclaim.Config{TTL: ttl})
	ctx, end := holding(t, store, event)
	for range 5 {
		server.FastForward(ttl - time.Millisecond)
		require.Eventually(t, func() bool { return server.TTL(eventKey) == ttl }, waitFor, tick)
		require.ErrorIs(t, store.Do(t.Context(), event, never), claim.ErrContended)
	}
	require.NoError(t, ctx.Err())
	require.NoError(t, end(nil))
}

// requireLost waits until the handler is told that its lock is lost.
func requireLost(t *testing.T, ctx context.Context) {
	t.Helper()
	require.Eventually(t, func() bool { return ctx.Err() != nil }, waitFor, tick)
	require.ErrorIs(t, context.Cause(ctx), redisclaim.ErrLockLost)
}

// A holder that lost its lock is told, and what it does afterwards changes nothing for the next one.
func TestLostLock(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ fails, want error }{
		"completes": {nil, redisclaim.ErrLockLost},
		"fails":     {errOops, errOops},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, store := fake(t, redisclaim.Config{TTL: 300 * time.Millisecond})
			ctx, end := holding(t, store, event)
			server.FastForward(time.Minute)
			_, endSecond := holding(t, newStore(t, devtest.RedisOn(t, server.Addr()), redisclaim.Config{}), event)
			requireLost(t, ctx)
			before, err := server.Get(eventKey)
			require.NoError(t, err)
			err = end(test.fails)
			require.ErrorIs(t, err, redisclaim.ErrLockLost)
			require.ErrorIs(t, err, test.want)
			after, err := server.Get(eventKey)
			require.NoError(t, err)
			assert.Equal(t, before, after)
			require.NoError(t, endSecond(nil))
		})
	}
}

// The end of the lock is known by this process's own clock when Redis is silent.
func TestLockEndsWithoutRedis(t *testing.T) {
	t.Parallel()
	server, store := fake(t, redisclaim.Config{TTL: 2 * time.Second})
	began := time.Now()
	ctx, end := holding(t, store, event)
	server.SetError("ERR out of order")
	requireLost(t, ctx)
	assert.GreaterOrEqual(t, time.Since(began), 2*time.Second)
	err := end(ctx.Err())
	require.ErrorIs(t, err, redisclaim.ErrLockLost)
	require.ErrorIs(t, err, context.Canceled)

	require.ErrorContains(t, store.Do(t.Context(), event, never), "out of order")
	server.SetError("")
	server.FastForward(time.Minute)
	_, end = holding(t, store, event)
	server.SetError("ERR out of order")
	require.ErrorContains(t, end(nil), "complete the lock in Redis: ERR out of order", "what is not known to be completed comes back")
}

func TestOutputs(t *testing.T) {
	t.Parallel()
	publisher := &tally{fails: errOops}
	server, store := fake(t, redisclaim.Config{TTL: time.Minute, Publisher: publisher})
	var handler context.Context
	stage := func(ctx context.Context) error {
		handler = ctx
		return store.Stage(ctx, "out", message.NewMessage("output", nil))
	}
	require.ErrorIs(t, store.Do(t.Context(), event, stage), errOops)
	assert.Empty(t, server.Keys(), "the event runs again")
	publisher.fail(nil)
	require.NoError(t, store.Do(t.Context(), event, stage))
	assert.Equal(t, map[string]int{"output": 2}, publisher.all(), "at least once")
	require.ErrorContains(t, stage(handler), "the handler has returned")
	require.ErrorContains(t, stage(t.Context()), "not that of a claim of this store")

	other := claim.Key{Consumer: "notify", EventID: "2"}
	require.ErrorIs(t, store.Do(t.Context(), other, func(ctx context.Context) error {
		server.FastForward(2 * time.Minute) // the lock is gone, and nobody has noticed
		return stage(ctx)
	}), redisclaim.ErrLockLost)
	assert.Equal(t, map[string]int{"output": 2}, publisher.all(), "the next holder's are enough")

	_, store = fake(t, redisclaim.Config{})
	require.ErrorContains(t, store.Do(t.Context(), event, stage), "set Config.Publisher or Config.Record")
}

// In front of a record Redis holds locks, and decides nothing.
func TestRecordDecides(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	f := inFront(t, devtest.RedisOn(t, server.Addr()), redisclaim.Config{TTL: 300 * time.Millisecond})
	record := f.Store.(*redisclaim.Store).Unwrap()
	_, end := holding(t, record, event)
	require.ErrorIs(t, f.Store.Do(t.Context(), event, never), claim.ErrContended, "by one that claims without the lock")
	require.ErrorIs(t, end(errOops), errOops)

	ctx, end := holding(t, f.Store, event)
	require.Len(t, server.Keys(), 1)
	server.FastForward(time.Minute)
	require.ErrorIs(t, f.Store.Do(t.Context(), event, never), claim.ErrContended, "the record holds it still")
	require.NoError(t, ctx.Err())
	require.NoError(t, f.Effect(ctx, event.EventID))
	require.NoError(t, end(nil))
	require.ErrorIs(t, f.Store.Do(t.Context(), event, never), claim.ErrCompleted)
	assert.Empty(t, server.Keys(), "a marker could outlive what it says")

	server.SetError("ERR out of order")
	require.ErrorIs(t, f.Store.Do(t.Context(), event, never), claim.ErrCompleted)
	other := claim.Key{Consumer: "notify", EventID: "2"}
	effect := func(ctx context.Context) error { return f.Effect(ctx, other.EventID) }
	require.NoError(t, f.Store.Do(t.Context(), other, effect), "without Redis")
	before := server.CommandCount()
	require.ErrorIs(t, f.Store.Do(t.Context(), other, never), claim.ErrCompleted)
	assert.Equal(t, before, server.CommandCount(), "it is left alone for a while")
	server.SetError("")
	require.Eventually(t, func() bool {
		require.ErrorIs(t, f.Store.Do(t.Context(), other, never), claim.ErrCompleted)
		return server.CommandCount() > before
	}, waitFor, tick)
	assert.Equal(t, map[string]int{"1": 1, "2": 1}, f.Effects())
}

// What a store completed while it stood alone stays completed when a record is put behind it.
func TestRecordIsAdded(t *testing.T) {
	t.Parallel()
	server, store := fake(t, redisclaim.Config{})
	require.NoError(t, store.Do(t.Context(), event, func(context.Context) error { return nil }))
	pool := devtest.Pool(t)
	f := claimtest.Postgres(t, pool, devtest.Schema(t))
	store = newStore(t, devtest.RedisOn(t, server.Addr()), redisclaim.Config{Record: f.Store})
	require.ErrorIs(t, store.Do(t.Context(), event, never), claim.ErrCompleted)
}

// lostAnswers is a client's hook by which the answer to the first script is lost after Redis has done what was asked.
type lostAnswers struct{ lost atomic.Bool }

func (*lostAnswers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *lostAnswers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && strings.HasPrefix(cmd.Name(), "eval") && !h.lost.Swap(true) {
			err = errOops
			cmd.SetErr(err)
		}
		return err
	}
}

func (*lostAnswers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A lock that was taken without anybody's knowing held its event up until it expired.
func TestLockThatNobodyKnowsOfIsReleased(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	client := devtest.RedisOn(t, server.Addr())
	client.AddHook(&lostAnswers{})
	store := newStore(t, client, redisclaim.Config{})
	require.ErrorIs(t, store.Do(t.Context(), event, never), errOops)
	assert.Empty(t, server.Keys())
	require.NoError(t, store.Do(t.Context(), event, func(context.Context) error { return nil }))
}
