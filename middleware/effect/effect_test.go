package effect_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/pgtx"
)

type receipt struct {
	ID     string
	Amount int
	hidden int
}

func TestResponseIsReplayed(t *testing.T) {
	t.Parallel()
	f, calls := newFixture(t), 0
	var keys []string
	charge := func() (receipt, error) {
		return effect.Value(f.ctx(), "charge:1", func(_ context.Context, key string) (receipt, error) {
			calls++
			keys = append(keys, key)
			return receipt{"ch_1", 990, calls}, nil
		})
	}
	first, err := charge()
	require.NoError(t, err)
	assert.Equal(t, receipt{"ch_1", 990, 0}, first)
	again, err := charge()
	require.NoError(t, err)
	assert.Equal(t, first, again)
	assert.Equal(t, 1, calls)
	assert.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, keys[0])

	_, err = effect.Value(f.ctx(), "charge:1", func(context.Context, string) (int, error) { return 0, nil })
	require.ErrorContains(t, err, "its response is of another type")
	require.NoError(t, effect.Once(f.ctx(), "charge:1", func(context.Context, string) error { calls++; return nil }))
	assert.Equal(t, 1, calls)
}

var errOops = errors.New("oops")

func once(ctx context.Context, err error, opts ...effect.Option) (calls int, _ error) {
	got := effect.Once(ctx, "key", func(context.Context, string) error { calls++; return err }, opts...)
	return calls, got
}

// What is known of an effect within another one's call says nothing about that call.
func TestNotDoneOfAnotherEffect(t *testing.T) {
	t.Parallel()
	f, calls := newFixture(t), 0
	outer := func(mark func(error) error) error {
		return effect.Once(f.ctx(), "outer", func(ctx context.Context, _ string) error {
			calls++
			_, err := once(ctx, effect.NotDone(errOops))
			return errors.Join(mark(err))
		})
	}
	require.NotErrorIs(t, outer(effect.NotDone), effect.ErrInDoubt, "unless the call says it of itself")
	require.ErrorIs(t, outer(func(err error) error { return fmt.Errorf("and then: %w", err) }), effect.ErrInDoubt)
	require.ErrorIs(t, outer(effect.NotDone), effect.ErrInDoubt)
	assert.Equal(t, 2, calls)
}

// What certainly did not happen is called again.
func TestNotDone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 3 {
		calls, err := once(f.ctx(), fmt.Errorf("send: %w", effect.NotDone(errOops)))
		require.ErrorIs(t, err, errOops)
		require.NotErrorIs(t, err, effect.ErrInDoubt)
		_, waits := retryAfter(err)
		assert.False(t, waits, "it is an attempt like any other")
		assert.Equal(t, 1, calls)
	}
	assert.Empty(t, f.entries("open"))
	found := f.entries("not_done")
	require.Len(t, found, 1)
	assert.Equal(t, 3, found[0].Calls)
	assert.Equal(t, "send: oops", found[0].Reason)
	calls, err := once(f.ctx(), nil)
	require.NoError(t, err)
	assert.Equal(t, 1, calls)
	calls, err = once(f.ctx(), effect.NotDone(nil))
	require.NoError(t, err)
	assert.Zero(t, calls)
}

// An error may be a timeout behind which the effect happened.
func TestOrdinaryErrorLeavesItInDoubt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := once(f.ctx(), errOops)
	require.ErrorIs(t, err, errOops)
	require.ErrorIs(t, err, effect.ErrInDoubt)
	_, waits := retryAfter(err)
	assert.True(t, waits)
	calls, err := once(f.ctx(), nil)
	require.ErrorIs(t, err, effect.ErrInDoubt)
	assert.Zero(t, calls)
	assert.Contains(t, err.Error(), "oops")

	calls, err = once(f.ctx(), errOops, effect.Idempotent())
	require.ErrorIs(t, err, errOops)
	_, waits = retryAfter(err)
	assert.False(t, waits, "where the next delivery calls again, a failure is an attempt")
	assert.Equal(t, 1, calls)
	calls, err = once(f.ctx(), nil, effect.Idempotent())
	require.NoError(t, err)
	assert.Equal(t, 1, calls)
	assert.Empty(t, f.entries("open"))
}

func TestPanicLeavesItInDoubt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	assert.PanicsWithValue(t, "oops", func() {
		_ = effect.Once(f.ctx(), "key", func(context.Context, string) error { panic("oops") })
	})
	open := f.entries("doubt")
	require.Len(t, open, 1)
	assert.Equal(t, "a panic", open[0].Reason)
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := once(f.ctx(), errOops)
	require.Error(t, err)
	var asked []effect.Intent
	answers := func(o effect.Outcome, err error) effect.Option {
		return effect.Reconcile(func(_ context.Context, i effect.Intent) (effect.Outcome, error) {
			asked = append(asked, i)
			return o, err
		})
	}
	for _, unknown := range []effect.Option{
		answers(effect.Unknown(), nil), answers(effect.WasDone(nil), errOops), answers(effect.WasDone(math.Inf(1)), nil),
	} {
		var calls int
		require.Eventually(t, func() bool { // once it has settled
			calls, err = once(f.ctx(), nil, unknown)
			return !strings.Contains(err.Error(), "asked soon")
		}, time.Minute, time.Millisecond)
		require.ErrorIs(t, err, effect.ErrInDoubt)
		_, waits := retryAfter(err)
		assert.True(t, waits)
		assert.Zero(t, calls)
	}
	require.Len(t, asked, 3)
	assert.Equal(t, "key", asked[0].Key)
	assert.Equal(t, "oops", asked[0].Reason)
	assert.Equal(t, 1, asked[0].Calls)
	assert.NotEmpty(t, asked[0].IdempotencyKey)
	assert.WithinRange(t, asked[0].Since, asked[0].CalledAt, time.Now().Add(time.Hour))

	calls, err := once(f.ctx(), nil, answers(effect.WasDone(nil), nil))
	require.NoError(t, err)
	assert.Zero(t, calls)
	_, err = effect.Value(f.ctx(), "key", func(context.Context, string) (int, error) { return 1, nil })
	require.ErrorIs(t, err, effect.ErrNoResponse)
	require.NoError(t, effect.Resolve(t.Context(), f.pool, f.schema, "labour/key", effect.Resolution{Done: true, Response: []byte("7"), By: "ada"}))
	n, err := effect.Value(f.ctx(), "key", func(context.Context, string) (int, error) { return 1, nil })
	require.NoError(t, err)
	assert.Equal(t, 7, n)
}

func TestTheProviderIsNotAskedBeforeItHasSettled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := effect.With(t.Context(), f.open(f.pool, effect.Config{Settle: time.Hour}))
	_, err := once(ctx, errOops)
	require.Error(t, err)
	_, err = once(ctx, nil, effect.Reconcile(func(context.Context, effect.Intent) (effect.Outcome, error) {
		t.Error("asked")
		return effect.Unknown(), nil
	}))
	require.ErrorIs(t, err, effect.ErrInDoubt)
	after, _ := retryAfter(err)
	assert.InDelta(t, time.Hour, after, float64(time.Minute))
}

// Two deliveries at once: one call, and the other one comes back.
func TestTwoCallersAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	calling, release := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	call := func() (string, error) {
		return effect.Value(f.ctx(), "key", func(context.Context, string) (string, error) {
			calls.Add(1)
			close(calling)
			<-release
			return "sent", nil
		})
	}
	var first sync.WaitGroup
	first.Go(func() {
		got, err := call()
		assert.NoError(t, err)
		assert.Equal(t, "sent", got)
	})
	<-calling
	for range 10 {
		_, err := call()
		require.ErrorIs(t, err, effect.ErrRunning)
		after, ok := retryAfter(err)
		assert.True(t, ok)
		assert.Equal(t, time.Second, after)
	}
	require.ErrorContains(t, effect.Resolve(t.Context(), f.pool, f.schema, "labour/key", effect.Resolution{By: "ada"}), "it may be running until")
	assert.Len(t, f.entries("running"), 1)
	close(release)
	first.Wait()
	got, err := call()
	require.NoError(t, err)
	assert.Equal(t, "sent", got)
	assert.EqualValues(t, 1, calls.Load())
}

// Many keys and many callers of each, all at once.
func TestManyCallersAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var calls [10]atomic.Int32
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			for {
				err := effect.Once(f.ctx(), fmt.Sprint("key ", i%10), func(context.Context, string) error { calls[i%10].Add(1); return nil })
				if err == nil {
					return
				}
				assert.ErrorIs(t, err, effect.ErrRunning)
			}
		})
	}
	all.Wait()
	for i := range calls {
		assert.EqualValues(t, 1, calls[i].Load())
	}
}

// The first caller is so late that a person has let another one call, and then it succeeds after all.
func TestLateSuccessIsAConflict(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release, called := make(chan struct{}), make(chan struct{})
	var first sync.WaitGroup
	first.Go(func() {
		assert.NoError(t, effect.Once(f.ctx(), "key", func(context.Context, string) error {
			close(called)
			<-release
			return nil
		}, effect.Timeout(2*time.Second)))
	})
	<-called
	require.Eventually(t, func() bool { return len(f.entries("doubt")) == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, effect.Resolve(t.Context(), f.pool, f.schema, "labour/key", effect.Resolution{By: "ada"}))
	calls, err := once(f.ctx(), nil)
	require.NoError(t, err)
	require.Equal(t, 1, calls)
	close(release)
	first.Wait()
	open := f.entries("open")
	require.Len(t, open, 1, "it is reported")
	assert.Equal(t, "done", open[0].State)
	assert.Equal(t, 1, open[0].Conflicts)
	assert.Len(t, f.entries("conflict"), 1)
	require.NoError(t, effect.Resolve(t.Context(), f.pool, f.schema, "labour/key", effect.Resolution{Done: true, By: "ada", Note: "refunded"}))
	assert.Empty(t, f.entries("open"))
}

// The context of the call ends with the caller's, and with the time of the intent; the outcome is recorded all the same.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	err := effect.Once(f.ctx(), "timeout", func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}, effect.Timeout(2*time.Second))
	require.ErrorIs(t, err, effect.ErrInDoubt)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel := context.WithCancel(f.ctx())
	err = effect.Once(ctx, "canceled", func(ctx context.Context, _ string) error {
		cancel()
		<-ctx.Done()
		return nil
	})
	require.NoError(t, err)
	assert.Len(t, f.entries("done"), 1)
	require.ErrorIs(t, effect.Once(ctx, "ended", func(context.Context, string) error { return errOops }), context.Canceled)
	short, cancel := context.WithTimeout(f.ctx(), 10*time.Second)
	defer cancel()
	require.NoError(t, effect.Once(short, "short", func(context.Context, string) error {
		running := f.entries("running")
		require.Len(t, running, 1)
		assert.Less(t, running[0].Until.Sub(running[0].CalledAt), 11*time.Second, "not longer than the caller's")
		return nil
	}))
	assert.Len(t, f.entries("all"), 3)

	over, cancel := context.WithTimeout(f.ctx(), 50*time.Microsecond)
	defer cancel()
	err = effect.Once(over, "no time left", func(context.Context, string) error { t.Error("called"); return nil })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Len(t, f.entries("open"), 1, "what was not called is not in doubt")
}

// The ledger never takes part in a transaction of the context's: neither in one of Run's nor in a caller's own.
func TestRecordSurvivesARollback(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.ErrorIs(t, pgtx.Run(f.ctx(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		calls, err := once(ctx, nil)
		require.NoError(t, err)
		assert.Equal(t, 1, calls)
		return errOops
	}), errOops)
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, effect.Once(pgtx.With(f.ctx(), tx), "other", func(context.Context, string) error { return nil }))
	require.NoError(t, tx.Rollback(t.Context()))
	assert.Len(t, f.entries("done"), 2)
}

func TestMisuse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	do := func(ctx context.Context, key string, opts ...effect.Option) error {
		return effect.Once(ctx, key, func(context.Context, string) error { t.Error("called"); return nil }, opts...)
	}
	require.ErrorIs(t, do(t.Context(), "key"), effect.ErrNoLedger)
	require.ErrorContains(t, do(f.ctx(), ""), "the key is empty")
	require.ErrorContains(t, do(f.ctx(), strings.Repeat("x", 513)), "513 bytes: want at most 512")
	require.ErrorContains(t, do(f.ctx(), "a\x00b"), "valid UTF-8 without zero bytes")
	require.ErrorContains(t, do(f.ctx(), "a\xff"), "valid UTF-8 without zero bytes")
	require.ErrorContains(t, do(f.ctx(), "key", effect.Timeout(0), effect.IdempotentFor(0)), "Timeout is 0s: want 1ms or more\nIdempotentFor")
	_, err := effect.Value(f.ctx(), "key", func(context.Context, string) (chan int, error) { t.Error("called"); return nil, nil })
	require.ErrorContains(t, err, "its response is no JSON")
	assert.Empty(t, f.entries("all"))

	_, err = effect.Value(f.ctx(), "key", func(context.Context, string) (float64, error) { return math.NaN(), nil })
	require.ErrorIs(t, err, effect.ErrNoResponse, "it is done all the same")
	assert.Len(t, f.entries("done"), 1)
	require.NoError(t, effect.Once(f.ctx(), strings.Repeat("ü", 256), func(context.Context, string) error { return nil }))

	for _, r := range []effect.Resolution{{}, {By: "a\x00"}, {By: "a", Response: []byte("1")}, {By: "a", Done: true, Response: []byte("{")}} {
		require.ErrorContains(t, effect.Resolve(t.Context(), f.pool, f.schema, "labour/key", r), "want")
	}
	require.ErrorContains(t, effect.Resolve(t.Context(), f.pool, f.schema, "nothing", effect.Resolution{By: "a"}), "no such effect")
	require.ErrorContains(t, effect.Resolve(t.Context(), f.pool, "no-good", "nothing", effect.Resolution{By: "a"}), "Schema is")

	_, err = effect.New(nil, effect.Config{Service: "labour", Schema: "no-good", MaxConns: -1, CallTimeout: -1, Retention: time.Hour})
	require.ErrorContains(t, err, "pool is nil")
	for _, want := range []string{"Schema is", "MaxConns is -1", "CallTimeout is -1ns: want 1ms", "Retention is 1h0m0s: want 24h0m0s or more"} {
		require.ErrorContains(t, err, want)
	}
}
