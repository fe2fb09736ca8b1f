package cache

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestSessionsShareOneRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(4, time.Second)
		var reads atomic.Int32
		var sessions sync.WaitGroup
		for range 50 {
			sessions.Go(func() {
				got, _, err := Get(t.Context(), c, "k", time.Second, func(context.Context) (int, error) {
					time.Sleep(100 * time.Millisecond)
					return int(reads.Add(1)), nil
				})
				assert.NoError(t, err)
				assert.Equal(t, 1, got)
			})
		}
		sessions.Wait()
		assert.EqualValues(t, 1, reads.Load())
		time.Sleep(2 * time.Second)
		got, _, _ := Get(t.Context(), c, "k", time.Second, func(context.Context) (int, error) { return 2, nil })
		assert.Equal(t, 2, got, "it is not fresh any more")
		c.Forget()
		got, _, _ = Get(t.Context(), c, "k", time.Second, func(context.Context) (int, error) { return 3, nil })
		assert.Equal(t, 3, got)
	})
}

func TestAnErrorComesWithTheLastValue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(1, time.Second)
		_, _, _ = Get(t.Context(), c, "k", 0, func(context.Context) (string, error) { return "old", nil })
		read := time.Now()
		time.Sleep(time.Second)
		got, at, err := Get(t.Context(), c, "k", 0, func(context.Context) (string, error) { return "", errors.New("gone") })
		assert.EqualError(t, err, "gone")
		assert.Equal(t, "old", got)
		assert.Equal(t, read, at)
		_, at, err = Get(t.Context(), c, "slow", 0, func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() })
		assert.ErrorIs(t, err, context.DeadlineExceeded, "the timeout ends a read")
		assert.True(t, at.IsZero())
	})
}

// A session that disconnects does not cancel the read that others wait for.
func TestTheFirstSessionMayLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(1, time.Minute)
		leaving, leave := context.WithCancel(t.Context())
		var sessions sync.WaitGroup
		sessions.Go(func() {
			_, _, _ = Get(leaving, c, "k", time.Hour, func(ctx context.Context) (int, error) {
				time.Sleep(time.Second)
				return 7, ctx.Err()
			})
		})
		synctest.Wait()
		leave()
		got, _, err := Get(t.Context(), c, "k", time.Hour, func(context.Context) (int, error) { return 0, errors.New("a second read") })
		assert.NoError(t, err)
		assert.Equal(t, 7, got)
		sessions.Wait()
	})
}

// Sessions that wait for a panicking read get an error, and the next session reads again.
func TestAReadThatPanicsEnds(t *testing.T) {
	t.Parallel()
	c := New(1, time.Second)
	assert.Panics(t, func() {
		_, _, _ = Get(t.Context(), c, "k", time.Hour, func(context.Context) (int, error) { panic("a bug") })
	})
	_, _, err := Get(t.Context(), c, "k", time.Hour, func(context.Context) (int, error) { return 1, nil })
	assert.EqualError(t, err, "the read panicked")
	c.Forget()
	got, _, err := Get(t.Context(), c, "k", time.Hour, func(context.Context) (int, error) { return 2, nil })
	assert.NoError(t, err)
	assert.Equal(t, 2, got)
}

// After Forget, Get does not return the result of a read that began earlier.
func TestForgetLeavesAReadThatRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(2, time.Minute)
		var sessions sync.WaitGroup
		sessions.Go(func() {
			got, _, err := Get(t.Context(), c, "k", time.Hour, func(context.Context) (string, error) {
				time.Sleep(time.Second)
				return "before", nil
			})
			assert.NoError(t, err)
			assert.Equal(t, "before", got)
		})
		synctest.Wait()
		c.Forget()
		got, _, err := Get(t.Context(), c, "k", time.Hour, func(context.Context) (string, error) { return "after", nil })
		assert.NoError(t, err)
		assert.Equal(t, "after", got)
		sessions.Wait()
	})
}

// A payload that somebody had looked at stayed in memory until 256 other results were read, for days on a quiet console.
func TestResultsThatNobodyRequestsAreDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(2, time.Minute)
		get := func(key string) {
			_, _, _ = Get(t.Context(), c, key, 0, func(context.Context) (string, error) { return "value of " + key, nil })
		}
		get("payload")
		for range 10 {
			time.Sleep(time.Minute)
			get("snapshot")
			_, at := Last[string](c, "doctor")
			assert.True(t, at.IsZero())
		}
		assert.Len(t, c.entries, 1, "the snapshot is requested again and again")
		get("payload")
		time.Sleep(time.Hour)
		value, at := Last[string](c, "payload")
		assert.Equal(t, "value of payload", value, "no other one was read")
		assert.False(t, at.IsZero())
		get("snapshot")
		assert.Len(t, c.entries, 2, "it was requested just now")
	})
}

// Searches that wait for a locked table had the figures of all pages wait, too.
func TestAKeyHasASlotOfItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(2, time.Minute, "snapshot", "doctor")
		stuck := make(chan struct{})
		var sessions sync.WaitGroup
		for _, key := range []string{"key a", "key b", "key c", "doctor"} {
			sessions.Go(func() {
				_, _, _ = Get(t.Context(), c, key, time.Hour, func(context.Context) (int, error) { <-stuck; return 1, nil })
			})
		}
		synctest.Wait()
		began := time.Now()
		got, _, err := Get(t.Context(), c, "snapshot", time.Hour, func(ctx context.Context) (int, error) {
			part, _, err := Get(ctx, c, "flows", time.Hour, func(context.Context) (int, error) { return 7, nil }) // a part of it needs no other slot
			return part, err
		})
		assert.NoError(t, err)
		assert.Equal(t, 7, got)
		assert.Zero(t, time.Since(began))
		_, _, err = Get(t.Context(), c, "key d", time.Hour, func(context.Context) (int, error) { return 0, nil })
		assert.ErrorIs(t, err, context.DeadlineExceeded, "the others share theirs")
		close(stuck)
		sessions.Wait()
	})
}

func TestKeepsNoMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	c := New(1, time.Second)
	for i := range 2 * maxEntries {
		_, _, _ = Get(t.Context(), c, strconv.Itoa(i), time.Hour, func(context.Context) (int, error) { return i, nil })
	}
	assert.Len(t, c.entries, maxEntries)
}
