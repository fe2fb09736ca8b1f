package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A part holds waits that are the same in three significant figures, and no wait is without one.
func TestPartsAreRightToAThousandth(t *testing.T) {
	t.Parallel()
	for wait := uint64(0); wait <= longest; wait += 1 + wait/777 {
		p := part(wait)
		require.Less(t, p, parts)
		require.LessOrEqual(t, least(p), wait)
		require.LessOrEqual(t, wait-least(p), wait/1000)
	}
	assert.Equal(t, parts-1, part(longest))
}

func TestPercentiles(t *testing.T) {
	t.Parallel()
	w, now := &window{}, time.Unix(1_800_000_000, 0)
	assert.Equal(t, []float64{0, 0}, w.percentiles(now, 0.5, 0.99), "nothing was noted")
	for ms := range 100 {
		w.note(now, time.Duration(ms+1)*time.Millisecond)
	}
	got := w.percentiles(now, 0.5, 0.95, 0.99)
	assert.InEpsilonSlice(t, []float64{50, 95, 99}, got, 0.001)
	w.note(now, -time.Second) // clocks may step back
	w.note(now, 100*time.Hour)
	assert.InEpsilon(t, 4_294_967.295, w.percentiles(now, 1)[0], 0.001, "the longest")

	later := now.Add(windowSeconds * time.Second)
	w.note(later.Add(-time.Second), time.Millisecond)
	assert.Equal(t, []float64{1}, w.percentiles(later, 1), "the first second has left the window")
	w.note(later, 2*time.Millisecond) // in the place of that second
	assert.Equal(t, []float64{1, 2}, w.percentiles(later, 0.5, 1))
}
