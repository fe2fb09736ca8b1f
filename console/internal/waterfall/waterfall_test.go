package waterfall

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func span(from, to time.Duration) Span { return Span{began.Add(from), began.Add(to)} }

func TestLay(t *testing.T) {
	t.Parallel()
	bars, gaps := Lay([]Span{span(0, 40*time.Millisecond), span(40*time.Millisecond, 100*time.Millisecond), {At: began.Add(50 * time.Millisecond)}})
	assert.Equal(t, []Bar{{X: 0, Width: 400}, {X: 400, Width: 600}, {X: 500, Width: dot, Moment: true}}, bars)
	assert.Empty(t, gaps)

	// A minute between milliseconds would leave nothing of them.
	bars, gaps = Lay([]Span{span(0, 100*time.Millisecond), span(time.Minute+100*time.Millisecond, time.Minute+200*time.Millisecond)})
	assert.Equal(t, []Bar{{X: 0, Width: 470}, {X: 530, Width: 470}}, bars)
	assert.Equal(t, []Gap{{X: 470, Width: short, Of: time.Minute}}, gaps)

	bars, gaps = Lay(nil)
	assert.Empty(t, bars)
	assert.Empty(t, gaps)
	bars, _ = Lay([]Span{{At: began}, {At: began}})
	assert.Equal(t, []Bar{{Width: dot, Moment: true}, {Width: dot, Moment: true}}, bars)
	bars, gaps = Lay([]Span{span(0, time.Hour)})
	assert.Equal(t, []Bar{{Width: Length}}, bars, "the only time is no gap")
	assert.Empty(t, gaps)
}

// Whatever the times are, bars are on the axis, and in the order of their beginnings.
func TestBarsAreOnTheAxis(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var spans []Span
		for range rapid.IntRange(1, 12).Draw(t, "spans") {
			at := began.Add(time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "at")))
			s := Span{At: at}
			if rapid.Bool().Draw(t, "ends") {
				s.End = at.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "took")))
			}
			spans = append(spans, s)
		}
		bars, gaps := Lay(spans)
		for i, b := range bars {
			assert.GreaterOrEqual(t, b.X, 0)
			assert.LessOrEqual(t, b.X+b.Width, Length+dot)
			for j, other := range bars {
				if spans[i].At.Before(spans[j].At) {
					assert.LessOrEqual(t, b.X, other.X)
				}
			}
		}
		assert.LessOrEqual(t, len(gaps), 5)
	})
}
