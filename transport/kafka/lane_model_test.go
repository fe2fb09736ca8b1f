package kafka

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestLaneModel: whatever happens in whatever order, what is released is done, in order and without a gap; nothing is
// delivered twice at once, or once it is done; a key's records are delivered one after another; and nothing is stuck.
func TestLaneModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ordered := rapid.Bool().Draw(r, "ordered")
		l := newLane(ordered, bounds{records: 10, bytes: 100})
		var (
			now       = time.Unix(0, 0)
			pushed    int64 // the next offset to push
			committed int64
			flights   = map[int64]*entry{}
			isDone    = map[int64]bool{}
			free      = map[int64]bool{}
		)
		key := func(offset int64) string { return []string{"", "a", "b", "a", "c"}[offset*7%5] }
		release := func(released []*entry) {
			for _, e := range released {
				require.Equal(r, committed, e.offset)
				require.True(r, isDone[e.offset])
				committed++
			}
		}
		take := func() bool {
			e := l.take(now)
			if e == nil {
				return false
			}
			require.NotContains(r, flights, e.offset, "twice at once")
			require.False(r, isDone[e.offset])
			require.GreaterOrEqual(r, e.offset, committed)
			if ordered && e.key != "" {
				for offset := range flights {
					require.True(r, key(offset) != e.key || free[offset], "%d while %d", e.offset, offset)
				}
				for offset := committed; offset < e.offset; offset++ {
					require.True(r, key(offset) != e.key || isDone[offset] || free[offset], "%d before %d", e.offset, offset)
				}
			}
			flights[e.offset] = e
			return true
		}
		done := func(offset int64) {
			isDone[offset] = true
			release(l.done(flights[offset]))
			delete(flights, offset)
		}
		flying := func(r *rapid.T) int64 {
			if len(flights) == 0 {
				r.Skip("nothing is under way")
			}
			return rapid.SampledFrom(slices.Sorted(maps.Keys(flights))).Draw(r, "flying")
		}
		push := func() {
			e := &entry{offset: pushed, key: key(pushed), bytes: 1, identity: fmt.Sprint(pushed)}
			pushed++
			release(l.push(e))
		}
		r.Repeat(map[string]func(*rapid.T){
			"push": func(r *rapid.T) {
				if l.full() {
					r.Skip("full")
				}
				push()
			},
			"take": func(*rapid.T) { take() },
			"done": func(r *rapid.T) { done(flying(r)) },
			"retry": func(r *rapid.T) {
				offset := flying(r)
				l.retry(flights[offset], now.Add(time.Duration(rapid.IntRange(0, 3).Draw(r, "delay"))))
				delete(flights, offset)
			},
			"handled": func(r *rapid.T) {
				offset := flying(r)
				l.handled(flights[offset])
				free[offset] = true
			},
			"put back": func(*rapid.T) {
				if e := l.take(now); e != nil {
					l.putBack(e)
				}
			},
			"time": func(*rapid.T) { now = now.Add(1) },
			"claim": func(*rapid.T) {
				l.suspend()
				l.resume(committed)
				pushed = committed
			},
			"claim, and what nobody has seen in between": func(r *rapid.T) {
				offset := flying(r)
				if free[offset] {
					r.Skip("a handler has it")
				}
				l.suspend()
				l.putBack(flights[offset])
				delete(flights, offset)
				l.resume(committed)
				pushed = committed
			},
			"claim, and an ack in between": func(r *rapid.T) {
				offset := flying(r)
				l.suspend()
				done(offset)
				l.resume(committed)
				pushed = committed
			},
			"": func(r *rapid.T) {
				taken := 0
				for offset := range flights {
					if offset < pushed {
						taken++
					}
				}
				require.Equal(r, taken, l.taken)
				require.Len(r, l.window, int(pushed-committed))
			},
		})
		highestBefore := slices.Max(append(slices.Collect(maps.Keys(isDone)), pushed-1))
		for pushed <= highestBefore { // read again what was lost
			push()
		}
		now = now.Add(time.Hour)
		for take() || len(flights) > 0 {
			for offset := range maps.Clone(flights) {
				done(offset)
			}
		}
		require.Equal(r, pushed, committed)
		require.Empty(r, l.keys)
	})
}
