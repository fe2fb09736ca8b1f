package lane

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
		l := New(ordered, 10)
		var (
			now       = time.Unix(0, 0)
			pushed    int64 // the next offset to push
			committed int64
			flights   = map[int64]*Entry{}
			isDone    = map[int64]bool{}
			free      = map[int64]bool{}
		)
		key := func(offset int64) string { return []string{"", "a", "b", "a", "c"}[offset*7%5] }
		release := func(released []*Entry) {
			for _, e := range released {
				require.Equal(r, committed, e.Offset)
				require.True(r, isDone[e.Offset])
				committed++
			}
		}
		take := func() bool {
			e := l.Take(now)
			if e == nil {
				return false
			}
			require.NotContains(r, flights, e.Offset, "twice at once")
			require.False(r, isDone[e.Offset])
			require.GreaterOrEqual(r, e.Offset, committed)
			if ordered && e.Key != "" {
				for offset := range flights {
					require.True(r, key(offset) != e.Key || free[offset], "%d while %d", e.Offset, offset)
				}
				for offset := committed; offset < e.Offset; offset++ {
					require.True(r, key(offset) != e.Key || isDone[offset] || free[offset], "%d before %d", e.Offset, offset)
				}
			}
			flights[e.Offset] = e
			return true
		}
		done := func(offset int64) {
			isDone[offset] = true
			release(l.Done(flights[offset]))
			delete(flights, offset)
		}
		inFlight := func(r *rapid.T) int64 {
			if len(flights) == 0 {
				r.Skip("nothing is under way")
			}
			return rapid.SampledFrom(slices.Sorted(maps.Keys(flights))).Draw(r, "in flight")
		}
		push := func() {
			e := &Entry{Offset: pushed, Key: key(pushed), Bytes: 1, Identity: fmt.Sprint(pushed)}
			pushed++
			release(l.Push(e))
		}
		r.Repeat(map[string]func(*rapid.T){
			"push": func(r *rapid.T) {
				if l.Full() {
					r.Skip("full")
				}
				push()
			},
			"take": func(*rapid.T) { take() },
			"done": func(r *rapid.T) { done(inFlight(r)) },
			"retry": func(r *rapid.T) {
				offset := inFlight(r)
				l.Retry(flights[offset], now.Add(time.Duration(rapid.IntRange(0, 3).Draw(r, "delay"))))
				delete(flights, offset)
			},
			"handled": func(r *rapid.T) {
				offset := inFlight(r)
				l.Handled(flights[offset])
				free[offset] = true
			},
			"put back": func(*rapid.T) {
				if e := l.Take(now); e != nil {
					l.PutBack(e)
				}
			},
			"time": func(*rapid.T) { now = now.Add(1) },
			"assignment": func(*rapid.T) {
				l.Suspend()
				l.Resume(committed)
				pushed = committed
			},
			"assignment, and what nobody has seen in between": func(r *rapid.T) {
				offset := inFlight(r)
				if free[offset] {
					r.Skip("a handler has it")
				}
				l.Suspend()
				l.PutBack(flights[offset])
				delete(flights, offset)
				l.Resume(committed)
				pushed = committed
			},
			"assignment, and an ack in between": func(r *rapid.T) {
				offset := inFlight(r)
				l.Suspend()
				done(offset)
				l.Resume(committed)
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
