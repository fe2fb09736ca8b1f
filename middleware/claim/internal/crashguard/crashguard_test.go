package crashguard

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Rows of other processes, look by look: beat and age in seconds. A verdict other than none makes the process suspicious.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	type row struct{ id, beat, age int }
	for name, looks := range map[string][]struct {
		rows    []row
		verdict string
		alive   []int64
	}{
		"nobody": {{nil, "", nil}, {nil, "", nil}},
		"one that lives": {
			{[]row{{1, 100, 1}}, "perhaps", nil}, // who knows
			{[]row{{1, 100, 3}}, "perhaps", nil},
			{[]row{{1, 104, 1}}, "", []int64{1}},
			{[]row{{1, 104, 3}}, "", []int64{1}},
		},
		"one that has ended cleanly": {{[]row{{1, 100, 1}}, "perhaps", nil}, {nil, "", nil}},
		"one that was killed just now": {
			{[]row{{1, 100, 9}}, "perhaps", nil},
			{[]row{{1, 100, 11}}, "killed", nil},
			{[]row{{1, 100, 3599}}, "killed", nil},
			{[]row{{1, 100, 3601}}, "", nil},
		},
		"one that was killed yesterday":         {{[]row{{1, 100, 80000}}, "", nil}},
		"one that comes later":                  {{nil, "", nil}, {[]row{{2, 100, 1}}, "", []int64{2}}},
		"one that comes later, and is killed":   {{nil, "", nil}, {[]row{{2, 100, 1}}, "", []int64{2}}, {[]row{{2, 100, 11}}, "killed", nil}},
		"one that was silent, and beats again":  {{[]row{{1, 100, 60}}, "killed", nil}, {[]row{{1, 170, 1}}, "", []int64{1}}},
		"one of two was killed":                 {{[]row{{1, 100, 1}, {2, 100, 1}}, "perhaps", nil}, {[]row{{1, 102, 1}, {2, 100, 3}}, "perhaps", []int64{1}}},
		"its beat is known, and then it dies":   {{[]row{{1, 100, 1}}, "perhaps", nil}, {[]row{{1, 102, 1}}, "", []int64{1}}, {[]row{{1, 102, 12}}, "killed", nil}},
		"one at the edge between young and old": {{[]row{{1, 100, 10}}, "perhaps", nil}},
	} {
		n := neighbours{Pace: defaultPace}
		for i, look := range looks {
			rows := make([]neighbour, 0, len(look.rows))
			for _, r := range look.rows {
				rows = append(rows, neighbour{int64(r.id), time.Unix(int64(r.beat), 0), time.Duration(r.age) * time.Second})
			}
			suspicious, killed := n.look(rows)
			assert.Equal(t, look.verdict != "", suspicious, "%s, look %d", name, i)
			assert.Equal(t, look.verdict == "killed", killed, "%s, look %d", name, i)
			alive := map[int64]bool{}
			for _, id := range look.alive {
				alive[id] = true
			}
			assert.Equal(t, alive, n.alive, "%s, look %d", name, i)
		}
	}
}

func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &Gate{}
		var mu sync.Mutex
		var events []string
		note := func(event string) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, event)
		}
		first, err := g.enter(t.Context())
		require.NoError(t, err)
		second, err := g.enter(t.Context())
		require.NoError(t, err)
		var all sync.WaitGroup
		all.Go(func() {
			leave, err := g.enterAlone(t.Context(), time.Minute)
			if assert.NoError(t, err) {
				note("alone")
				<-time.After(time.Second)
				note("alone no more")
				leave()
			}
		})
		synctest.Wait()
		all.Go(func() { // although there are others in already
			leave, err := g.enter(t.Context())
			if assert.NoError(t, err) {
				note("later")
				leave()
			}
		})
		synctest.Wait()
		first()
		synctest.Wait()
		note("still in")
		second()
		all.Wait()
		assert.Equal(t, []string{"still in", "alone", "alone no more", "later"}, events)
	})
}

// What runs alone may wait for another message, or never end: the others do not wait for ever.
func TestGateOpensAfterItsLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &Gate{}
		leaveAlone, err := g.enterAlone(t.Context(), time.Minute)
		require.NoError(t, err)
		begun := time.Now()
		leave, err := g.enter(t.Context())
		require.NoError(t, err)
		assert.Equal(t, time.Minute, time.Since(begun))
		leave()
		// It still runs, so nobody else is alone.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = g.enterAlone(ctx, time.Minute)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		leave, err = g.enter(t.Context()) // who gave up holds nobody up
		require.NoError(t, err)
		leaveAlone()
		leave()
		leave, err = g.enterAlone(t.Context(), time.Minute)
		require.NoError(t, err)
		leave()
		assert.Zero(t, g.in)
		assert.False(t, g.closed)
	})
}

func TestMessagesWaitUntilTheProcessIsRegistered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &life{}
		now, err := l.take(t.Context(), time.Hour)
		require.NoError(t, err, "without Run nothing is waited for")
		assert.Zero(t, now)
		l.done()
		require.NoError(t, l.begin())
		require.Error(t, l.begin(), "once at a time")
		_, err = l.take(t.Context(), time.Second)
		require.ErrorIs(t, err, errUnregistered)
		ended, end := context.WithCancel(t.Context())
		end()
		_, err = l.take(ended, time.Hour)
		require.ErrorIs(t, err, context.Canceled)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				now, err := l.take(t.Context(), time.Hour)
				assert.NoError(t, err)
				assert.Equal(t, int64(7), now.run)
			})
		}
		synctest.Wait()
		l.stand(standing{run: 7})
		all.Wait()
		begun := time.Now()
		assert.Equal(t, 3, l.drain(time.Second))
		assert.Equal(t, time.Second, time.Since(begun))
		l.done()
		l.done()
		all.Go(func() { assert.Zero(t, l.drain(time.Hour)) })
		synctest.Wait()
		l.done()
		all.Wait()
		l.end()
		require.NoError(t, l.begin(), "and again")
		all.Go(func() {
			_, err := l.take(t.Context(), time.Hour)
			assert.NoError(t, err, "Run has ended before it was registered")
		})
		synctest.Wait()
		l.end()
		all.Wait()
	})
}
