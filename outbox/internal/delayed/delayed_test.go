package delayed_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/delayed"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

func TestLimitIsHalvedByFailuresAndDoubledBySuccesses(t *testing.T) {
	t.Parallel()
	exact := func(d time.Duration) time.Duration { return d }
	now := time.Unix(0, 0)
	m := delayed.New(time.Second)
	limits := func(answers ...step.DelayedMoved) (limits []int, last time.Duration) {
		for _, in := range answers {
			limit, at := m.Next(now)
			if limit == 0 {
				now = at
				limit, _ = m.Next(now)
			}
			limits = append(limits, limit)
			again, none := m.Next(now)
			require.Zero(t, again, "one move at a time")
			require.Zero(t, none)
			last = m.Done(in, exact, now)
		}
		return limits, last
	}
	failed := step.DelayedMoved{Err: errors.New("too slow")}
	got, wait := limits(failed, failed, failed)
	require.Equal(t, []int{delayed.Most, 500, 250}, got)
	require.Equal(t, 400*time.Millisecond, wait)
	// Large events use up the bytes of a move long before the limit. The limit grows all the same.
	got, wait = limits(step.DelayedMoved{Moved: 1, Next: time.Millisecond}, step.DelayedMoved{Moved: 1, Next: time.Millisecond}, step.DelayedMoved{})
	require.Equal(t, []int{125, 250, 500}, got)
	require.Zero(t, wait)
	began := now
	limit, at := m.Next(now)
	require.Zero(t, limit)
	require.Equal(t, began.Add(time.Second), at, "nothing was due")
	now = at
	got, _ = limits(step.DelayedMoved{Moved: 500})
	require.Equal(t, []int{500}, got)
	limit, _ = m.Next(now)
	require.Equal(t, delayed.Most, limit, "more may be due, so the next move is made at once")
}
