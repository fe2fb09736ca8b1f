// Package waterfall draws steps to scale: each step is a bar on one axis of time, and long quiet times are shortened.
package waterfall

import (
	"slices"
	"time"
)

// Length is the length of the axis.
const Length = 1000

const (
	// quiet bounds the time between two moments. A time is shortened if it is more than quiet times as long as all the others together,
	// without those that are already shortened.
	quiet = 20
	// short is the length of a shortened time.
	short = 60
	// dot is the least length of a bar.
	dot = 6
)

// Span is a step. A zero End is a moment.
type Span struct{ At, End time.Time }

// Bar is the place of a step on the axis.
type Bar struct {
	X, Width int
	Moment   bool // its end is not known, or it has none
}

// Gap is a shortened time on the axis.
type Gap struct {
	X, Width int
	Of       time.Duration
}

// Lay places the spans on the axis, and returns a bar for each of them, and the gaps.
func Lay(spans []Span) (bars []Bar, gaps []Gap) {
	var moments []time.Time
	for _, s := range spans {
		moments = append(moments, s.At)
		if !s.End.IsZero() {
			moments = append(moments, s.End)
		}
	}
	slices.SortFunc(moments, time.Time.Compare)
	moments = slices.CompactFunc(moments, time.Time.Equal)
	if len(moments) == 0 {
		return nil, nil
	}
	between := make([]time.Duration, len(moments)-1)
	for i := range between {
		between[i] = moments[i+1].Sub(moments[i])
	}
	shortened, rest := shorten(between)
	scale := float64(Length-short*len(shortened)) / float64(max(rest, 1))
	places := make([]int, len(moments))
	at := 0.0
	for i, d := range between {
		if shortened[i] {
			gaps = append(gaps, Gap{X: int(at), Width: short, Of: d})
			at += short
		} else {
			at += float64(d) * scale
		}
		places[i+1] = int(at + 0.5)
	}
	place := func(t time.Time) int {
		i, _ := slices.BinarySearchFunc(moments, t, time.Time.Compare)
		return places[i]
	}
	for _, s := range spans {
		b := Bar{X: min(place(s.At), Length-dot), Width: dot, Moment: s.End.IsZero()}
		if !b.Moment {
			b.Width = max(dot, place(s.End)-b.X)
		}
		bars = append(bars, b)
	}
	return bars, gaps
}

// shorten returns which times are shortened, and the sum of the others. At most five are, so that the axis has room for the rest.
func shorten(between []time.Duration) (shortened map[int]bool, rest time.Duration) {
	order := make([]int, len(between))
	for i, d := range between {
		order[i], rest = i, rest+d
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(min(max(between[b]-between[a], -1), 1)) })
	shortened = map[int]bool{}
	for _, i := range order[:max(min(len(order)-1, 5), 0)] {
		if others := rest - between[i]; between[i] <= quiet*others || others == 0 {
			break
		}
		shortened[i], rest = true, rest-between[i]
	}
	return shortened, rest
}
