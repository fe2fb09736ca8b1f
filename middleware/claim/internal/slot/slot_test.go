package slot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	tenant = Key{"labour/notify", "tenant"}
	began  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

func TestEnter(t *testing.T) {
	t.Parallel()
	var s Slots
	for _, e := range []string{"a", "b"} {
		_, ok := s.Enter(tenant, e, 2, began)
		require.True(t, ok)
	}
	wait, ok := s.Enter(tenant, "c", 2, began)
	assert.False(t, ok, "both slots are taken")
	assert.Equal(t, Near, wait)
	_, ok = s.Enter(Key{"labour/notify", "other"}, "d", 2, began)
	assert.True(t, ok, "of another key")
	_, ok = s.Enter(Key{"labour/bill", "tenant"}, "d", 2, began)
	assert.True(t, ok, "of another consumer")
	s.Leave(tenant, "a", false, began)
	_, ok = s.Enter(tenant, "c", 2, began)
	assert.True(t, ok)

	s.Leave(tenant, "b", false, began)
	_, ok = s.Enter(tenant, "e", 2, began)
	require.True(t, ok)
	assert.Equal(t, Near, s.Leave(tenant, "e", true, began), "other processes have the slots")
	_, ok = s.Enter(tenant, "e", 2, began.Add(Full-1))
	assert.False(t, ok, "the database is not asked at once")
	_, ok = s.Enter(tenant, "e", 2, began.Add(Full))
	assert.True(t, ok)
}

// Newcomers do not push aside those that have waited for long, and one that does not come again keeps nobody waiting.
func TestPlaces(t *testing.T) {
	t.Parallel()
	var s Slots
	_, ok := s.Enter(tenant, "first", 1, began)
	require.True(t, ok)
	for n := range 2 * Window {
		wait, ok := s.Enter(tenant, fmt.Sprint(n), 1, began)
		require.False(t, ok)
		assert.Equal(t, n < Window, wait == Near, n)
	}
	s.Leave(tenant, "first", false, began)
	_, ok = s.Enter(tenant, "new", 1, began)
	assert.False(t, ok, "a newcomer, though a slot is free")
	_, ok = s.Enter(tenant, fmt.Sprint(2*Window-1), 1, began)
	assert.False(t, ok, "one of the last")
	_, ok = s.Enter(tenant, "3", 1, began)
	require.True(t, ok, "one of the first")
	s.Leave(tenant, "3", false, began)
	later := began.Add(Far + gone + 1)
	_, ok = s.Enter(tenant, "newer", 1, later)
	assert.True(t, ok, "the others went elsewhere")
	s.Leave(tenant, "newer", false, later)
	assert.Empty(t, s.keys, "nothing is left")
}

func TestKeysOfEventsThatWentElsewhere(t *testing.T) {
	t.Parallel()
	var s Slots
	for n := range maxIdle {
		of := Key{"labour/notify", fmt.Sprint(n)}
		_, ok := s.Enter(of, "a", 1, began)
		require.True(t, ok)
		s.Leave(of, "a", n != 0, began)
		if n == 0 {
			_, ok := s.Enter(of, "a", 1, began)
			require.True(t, ok)
		}
	}
	s.Enter(Key{"labour/notify", "another"}, "a", 1, began.Add(time.Minute))
	assert.Len(t, s.keys, 2, "the one that runs, and the new one")
}

// Whatever comes and goes: no more run than there are slots, and few get ahead of an event that came before them, however many newcomers
// there are and however often other processes have the slots.
func TestNobodyStarves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s Slots
		slots := rapid.IntRange(1, 4).Draw(t, "slots")
		now, come, over := began, map[int]time.Time{}, map[int]time.Time{} // by the order in which they came
		passed, newcomers := map[int]int{}, 0
		for range 300 {
			now = now.Add(10 * time.Millisecond)
			if rapid.IntRange(0, 2).Draw(t, "new") == 0 {
				newcomers++
				come[newcomers] = now
			}
			for e, at := range over {
				if !now.Before(at) {
					s.Leave(tenant, fmt.Sprint(e), false, now)
					delete(over, e)
				}
			}
			unlucky := rapid.IntRange(0, newcomers).Draw(t, "unlucky") // it is always the last to try
			order := slices.Sorted(maps.Keys(come))
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(max(0, unlucky-a), max(0, unlucky-b)) })
			for _, e := range order {
				if now.Before(come[e]) {
					continue
				}
				wait, ok := s.Enter(tenant, fmt.Sprint(e), slots, now)
				switch {
				case ok && rapid.IntRange(0, 3).Draw(t, "elsewhere") == 0:
					come[e] = now.Add(s.Leave(tenant, fmt.Sprint(e), true, now))
				case ok:
					delete(come, e)
					over[e] = now.Add(20 * time.Millisecond)
					for other := range come {
						if _, waits := passed[other]; waits && other < e {
							passed[other]++
						}
					}
				default:
					passed[e] += 0
					come[e] = now.Add(wait)
				}
			}
			if len(over) > slots {
				t.Fatalf("%d run with %d slots", len(over), slots)
			}
		}
		for e, n := range passed {
			if n > MaxPassed {
				t.Fatalf("%d that came later were ahead of %d", n, e)
			}
		}
	})
}
