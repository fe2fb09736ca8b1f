package circuit

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	errOut = errors.New("the provider is out")
	began  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

func breaker(failures int) *Breaker {
	return New(Config{Failures: failures, Pause: time.Second, MaxPause: 8 * time.Second, Jitter: func(d time.Duration) time.Duration { return d }})
}

func (b *Breaker) fail(events ...string) (last Verdict) {
	for _, e := range events {
		last = b.Failed(e, errOut, began)
	}
	return last
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events []string
		want   Verdict
	}{
		"the first one":            {[]string{"a"}, Counts},
		"one event again":          {[]string{"a", "a", "a", "a", "a"}, Counts},
		"another one":              {[]string{"a", "b"}, Doubtful},
		"an event and its others":  {[]string{"a", "a", "b", "b"}, Doubtful},
		"enough different ones":    {[]string{"a", "b", "c"}, Pauses},
		"two that take turns":      {[]string{"a", "b", "a"}, Pauses},
		"one that was on its way":  {[]string{"a", "b", "c", "d"}, Spared},
		"after a success, the 1st": {[]string{"a", "b", "", "c"}, Counts},
		"after a success, the 2nd": {[]string{"a", "b", "", "b", "c"}, Doubtful},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, got := breaker(3), Verdict(-1)
			for _, e := range c.events {
				if e == "" {
					b.Succeeded(began)
					continue
				}
				got = b.fail(e)
			}
			assert.Equal(t, c.want, got)
		})
	}
}

// The pauses double up to the longest; one event is tried after each, and a success ends them.
func TestPauses(t *testing.T) {
	t.Parallel()
	b, now := breaker(2), began
	require.Equal(t, Pauses, b.fail("a", "b"))
	for i, want := range []time.Duration{1, 2, 4, 8, 8} {
		event := fmt.Sprint("e", i)
		wait, ok := b.Admit("too early", true, now)
		assert.False(t, ok)
		assert.Equal(t, want*time.Second, wait)
		now = now.Add(wait)
		_, ok = b.Admit(event, true, now)
		require.True(t, ok)
		_, ok = b.Admit("beside it", true, now)
		assert.False(t, ok, "one at a time")
		assert.Equal(t, Spared, b.Failed(event, errOut, now))
	}
	since, err := b.Paused()
	assert.Equal(t, began, since)
	assert.Equal(t, errOut, err)
	now = now.Add(8 * time.Second)
	_, ok := b.Admit("e", true, now)
	require.True(t, ok)
	paused, was := b.Succeeded(now)
	assert.True(t, was)
	assert.Equal(t, now.Sub(began), paused)
	_, ok = b.Admit("anything", true, now)
	assert.True(t, ok)
	since, _ = b.Paused()
	assert.Zero(t, since)
}

// One that was tried and tells nothing, such as a duplicate, leaves its place to the next.
func TestProbeThatTellsNothing(t *testing.T) {
	t.Parallel()
	b := breaker(2)
	b.fail("a", "b")
	now := began.Add(time.Second)
	_, ok := b.Admit("duplicate", true, now)
	require.True(t, ok)
	b.Done("another")
	_, ok = b.Admit("next", true, now)
	require.False(t, ok)
	b.Done("duplicate")
	_, ok = b.Admit("next", true, now)
	assert.True(t, ok)
}

// Those that failed before are tried where nothing else comes, and else after a while all the same.
func TestRetriesInAPause(t *testing.T) {
	t.Parallel()
	b := breaker(2)
	retries := func(after time.Duration) int { return b.Retries(7, began.Add(after)) }
	assert.Equal(t, 7, retries(0))
	b.fail("a", "b")
	assert.Equal(t, 0, retries(0), "nothing in the pause")
	assert.Equal(t, 1, retries(time.Second), "one after it")
	b.Admit("from the table", false, began)
	assert.Equal(t, 1, retries(time.Second))
	b.Admit("from the broker", true, began)
	assert.Equal(t, 0, retries(time.Second), "the broker has others")
	assert.Equal(t, 1, retries(9*time.Second), "which do not come")
	b.Admit("from the broker", true, began.Add(time.Second))
	assert.Equal(t, 0, retries(9*time.Second), "one is tried")
}

// Whatever comes: one event alone never pauses a consumer; between two successes fewer failures count than pause it; a pause ends
// with the first success, and lets an event be tried within the longest pause.
func TestBreaker(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		failures := rapid.IntRange(2, 5).Draw(t, "failures")
		b := breaker(failures)
		now := began
		counted, admitted, failed := map[string]int{}, map[string]bool{}, map[string]bool{}
		event := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"})
		paused := func() bool { since, _ := b.Paused(); return !since.IsZero() }
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 4000).Draw(t, "ms")) * time.Millisecond)
			},
			"admit": func(t *rapid.T) {
				e := event.Draw(t, "event")
				if admitted[e] {
					return // it is in flight
				}
				wait, ok := b.Admit(e, rapid.Bool().Draw(t, "broker"), now)
				admitted[e] = ok
				if !ok && (wait > 8*time.Second || !paused()) {
					t.Fatalf("turned away for %s", wait)
				}
			},
			"fail": func(t *rapid.T) {
				e := event.Draw(t, "event")
				if !admitted[e] {
					return // it is not in flight
				}
				was := paused()
				v := b.Failed(e, errOut, now)
				b.Done(e)
				admitted[e], failed[e] = false, true
				if v == Counts || v == Doubtful {
					counted[e]++
				}
				if was != (v == Spared) || paused() != (v == Spared || v == Pauses) {
					t.Fatalf("the verdict is %d", v)
				}
				if paused() && len(failed) < 2 {
					t.Fatal("one event alone pauses the consumer")
				}
				if v == Counts && len(failed) > 1 {
					t.Fatal("another event failed before, so it is doubtful")
				}
				if len(counted) >= failures {
					t.Fatalf("attempts of %d events count", len(counted))
				}
			},
			"succeed": func(t *rapid.T) {
				e := event.Draw(t, "event")
				if !admitted[e] {
					return // it is not in flight
				}
				was := paused()
				if _, is := b.Succeeded(now); is != was || paused() {
					t.Fatal("a success ends the pause")
				}
				b.Done(e)
				admitted[e] = false
				clear(counted)
				clear(failed)
			},
			"tell nothing": func(t *rapid.T) {
				e := event.Draw(t, "event")
				if !admitted[e] {
					return // it is not in flight
				}
				b.Done(e)
				admitted[e] = false
			},
			"": func(t *rapid.T) {
				if b.probe != "" && !admitted[b.probe] {
					t.Fatalf("%s is tried, which is not in flight", b.probe)
				}
				later := *b
				if _, ok := later.Admit("later", true, now.Add(8*time.Second)); !ok && b.probe == "" {
					t.Fatal("nothing may be tried although a pause has passed")
				}
			},
		})
	})
}
