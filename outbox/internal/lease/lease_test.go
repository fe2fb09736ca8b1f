package lease_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/outbox/internal/lease"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

const ttl = 4 * time.Second

var start = time.Unix(1e9, 0)

func leases() *lease.Leases {
	return lease.New(ttl, func(d time.Duration) time.Duration { return d }, start)
}

// A relay gives back what exceeds its share, however often it is asked while it does: no shard more, the ones with the fewest events.
func TestSurplusIsWhatExceedsTheShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var held []lease.Held
		for i := range rapid.IntRange(0, 16).Draw(t, "shards") {
			held = append(held, lease.Held{Shard: int16(i), Events: rapid.IntRange(0, 9).Draw(t, "events")})
		}
		fair := rapid.IntRange(0, 16).Draw(t, "fair")
		chosen := lease.Surplus(fair, held)
		require.Len(t, chosen, max(len(held)-fair, 0))
		for i := range held {
			held[i].Leaving = slices.Contains(chosen, held[i].Shard)
		}
		for _, gone := range held {
			for _, kept := range held {
				require.False(t, gone.Leaving && !kept.Leaving && gone.Events > kept.Events)
			}
		}
		require.Empty(t, lease.Surplus(fair, held), "those that it is giving back count")
	})
}

// Whatever the answers are: one renewal is under way at a time, the next one comes a quarter of the TTL after the one before, and a lease
// holds from before the request was sent.
func TestRenewals(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, now := leases(), start
		for range rapid.IntRange(1, 20).Draw(t, "renewals") {
			due, _ := l.Due(now)
			require.True(t, due)
			began := now
			l.Renew(nil, false, false, nil, now)
			now = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
			due, at := l.Due(now)
			require.False(t, due, "one is under way")
			require.Zero(t, at)
			in := step.Renewed{Began: began, Fair: 1, Shards: 4}
			if rapid.Bool().Draw(t, "lost") {
				in.Err = errors.New("lost")
			}
			deadline, again := l.Renewed(in, now)
			due, at = l.Due(now)
			require.Equal(t, !now.Before(began.Add(ttl/4)), due)
			require.Equal(t, began.Add(ttl/4), at)
			if in.Err == nil {
				require.Equal(t, began.Add(ttl), deadline)
			} else {
				require.Equal(t, max(at.Sub(now), 0), again)
			}
			if at.After(now) {
				now = at
			}
		}
	})
}

// A shard whose publisher does not return is left to others: for a minute, then for two, unless there are no others. One that is being
// given back is not asked for, and is not left either. A relay that ends leaves all.
func TestWhatARelayLeavesToOthers(t *testing.T) {
	t.Parallel()
	l, now := leases(), start
	renew := func(fair int, ending bool) step.Renew {
		r := l.Renew(nil, false, ending, nil, now)
		l.Renewed(step.Renewed{Began: now, Fair: fair, Shards: 4}, now)
		return r
	}
	renew(2, false)
	for _, rest := range []time.Duration{time.Minute, 2 * time.Minute} {
		l.Shun(3, now)
		now = now.Add(rest - 1)
		assert.Equal(t, []int16{3}, renew(2, false).Shun)
		now = now.Add(1)
		assert.Empty(t, renew(2, false).Shun)
	}
	l.Shun(3, now)
	l.Release(1, now)
	r := renew(4, false)
	assert.Equal(t, []int16{1, 3}, r.Shun)
	assert.Equal(t, 1, r.Left)
	r = renew(4, false)
	assert.Equal(t, []int16{1}, r.Shun, "it is alone")
	l.Released([]int16{1})
	assert.Empty(t, renew(4, false).Shun)
	l.Release(1, now)
	now = now.Add(2 * ttl)
	assert.Empty(t, renew(4, false).Shun, "the answer was lost")
	r = renew(4, true)
	assert.Equal(t, []int16{0, 1, 2, 3}, r.Shun)
	assert.Equal(t, 4, r.Left)
}

// A relay with work struggles when it has published nothing for 15 s, rests for a minute, then for two, and so on up to ten. One without
// work does not, and what it publishes ends that.
func TestStruggles(t *testing.T) {
	t.Parallel()
	l, now := leases(), start
	for range 100 {
		now = now.Add(time.Second)
		require.False(t, l.Struggles(false, now))
	}
	for range 2 {
		for _, minutes := range []int{1, 2, 4, 8, 10, 10} {
			now = now.Add(15 * time.Second)
			require.False(t, l.Struggles(true, now))
			now = now.Add(1)
			require.True(t, l.Struggles(true, now))
			now = now.Add(time.Duration(minutes) * time.Minute)
			require.True(t, l.Struggles(true, now))
			now = now.Add(1)
			require.False(t, l.Struggles(true, now))
		}
		l.GotOn(now)
	}
}
