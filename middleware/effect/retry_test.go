package effect_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/retry"
)

// A provider that refuses two calls and takes the third: the event need not be delivered three times for it.
func TestRetriesWithinAnEffect(t *testing.T) {
	t.Parallel()
	errBusy := errors.New("busy")
	quick := retry.Policy{{Backoff: time.Millisecond}}
	for name, c := range map[string]struct {
		err   error
		opts  []effect.Option
		calls int
	}{
		"no policy":                        {err: effect.NotDone(errBusy), calls: 1},
		"refused":                          {err: effect.NotDone(errBusy), opts: []effect.Option{effect.Retry(quick)}, calls: 3},
		"unknown":                          {err: errBusy, opts: []effect.Option{effect.Retry(quick)}, calls: 1},
		"unknown, the provider knows keys": {err: errBusy, opts: []effect.Option{effect.Retry(quick), effect.Idempotent()}, calls: 3},
		"another error": {
			err: effect.NotDone(errBusy), calls: 1,
			opts: []effect.Option{effect.Retry(retry.Policy{{Error: func(err error) bool { return errors.Is(err, errBusy) }, Dead: true}, {Backoff: time.Millisecond}})},
		},
		"by its key": {err: effect.NotDone(errBusy), opts: []effect.Option{effect.Retry(retry.Policy{{Topic: "sms:*", Dead: true}})}, calls: 1},
		"two calls":  {err: effect.NotDone(errBusy), opts: []effect.Option{effect.Retry(retry.Policy{{MaxAttempts: 2, Backoff: time.Millisecond}})}, calls: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			keys := map[string]int{}
			err := effect.Once(f.ctx(), "sms:1", func(_ context.Context, idempotencyKey string) error {
				if keys[idempotencyKey]++; keys[idempotencyKey] == 3 {
					return nil
				}
				return c.err
			}, c.opts...)
			assert.Len(t, keys, 1, "each call has the same idempotency key")
			all := f.entries("all")
			require.Len(t, all, 1)
			assert.Equal(t, c.calls, all[0].Calls)
			if c.calls == 3 {
				require.NoError(t, err)
				assert.Equal(t, "done", all[0].State)
				return
			}
			require.ErrorIs(t, err, errBusy)
			assert.NotEqual(t, "done", all[0].State)
		})
	}
}

// A provider does what is asked, and the answer is lost. The next call has the same key and does not reach the provider, or has no time
// left. That once settled the effect as not done, and when the provider had forgotten the key, another call repeated the effect.
func TestRefusedCallSettlesNoEarlierDoubt(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]effect.Option{"refused": nil, "late": {effect.Timeout(time.Millisecond)}, "retried": {effect.Retry(retry.Policy{{Backoff: time.Millisecond}})}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			calls := 0
			once := func(answer error, opts ...effect.Option) error {
				return effect.Once(f.ctx(), "charge:1", func(context.Context, string) error {
					calls++
					return answer
				}, append(opts, effect.IdempotentFor(24*time.Hour))...)
			}
			require.ErrorIs(t, once(errOops), effect.ErrInDoubt)
			err := once(effect.NotDone(errors.New("connection refused")), opts...)
			if name != "late" {
				require.ErrorIs(t, err, effect.ErrInDoubt)
			}
			require.Error(t, err)
			assert.Len(t, f.entries("doubt"), 1)
			f.exec(`update ` + f.schema + `.effect set first_called_at = first_called_at - interval '25 hours'`)
			before := calls
			require.ErrorIs(t, once(nil), effect.ErrInDoubt)
			assert.Equal(t, before, calls)
		})
	}
}

// A wait that would outlast the event's time is not begun.
func TestRetriesEndWithTheContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithTimeout(f.ctx(), time.Minute)
	defer cancel()
	err := effect.Once(ctx, "key", func(context.Context, string) error { return effect.NotDone(errOops) }, effect.Retry(retry.Policy{{Backoff: time.Hour}}))
	require.ErrorIs(t, err, errOops)
	require.NoError(t, ctx.Err())
	err = effect.Once(f.ctx(), "key", func(context.Context, string) error { return nil }, effect.Retry(retry.Policy{{MaxAttempts: -1}}))
	require.ErrorContains(t, err, "Retry[0].MaxAttempts is -1: want 1 to 1000")
}
