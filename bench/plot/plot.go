// Package plot draws measured series as SVG, to stand in an HTML page. Their colours are classes of the page's style, so that they
// follow its theme: label, value, grid, axis, dot, met, missed, range, bar, target.
package plot

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strings"
)

// Series is one figure and what each run measured of it.
type Series struct {
	Name   string
	Values []float64 // at least one, each greater than 0
	Text   string    // the median, as a person reads it
	Target float64   // 0: none
	Met    bool      // the target
}

// Measures in pixels.
const (
	left   = 310 // where the plot begins, behind the names
	wide   = 420 // the plot
	right  = 130 // the medians' texts
	row    = 22
	header = 24
	inset  = 5 // of a bar in its row
)

// reach is how many times the reference the axis of Ratios reaches, in both directions.
const reach = 4.0

// Ratios draws a row for each series: a dot for each run, a line from the smallest to the largest, and a tick at the median. The axis is
// logarithmic. Its middle is the series' target, or 1 where it has none. What is beyond the axis is drawn at its end, as an arrow.
func Ratios(all []Series) template.HTML {
	var b strings.Builder
	begin(&b, len(all), "Each figure as a multiple of its target, or of 1 where it has no target: a dot for each run.")
	for _, line := range []struct {
		at   float64
		text string
	}{{1 / reach, "a quarter"}, {0.5, "half"}, {1, "target"}, {2, "twice"}, {reach, "four times"}} {
		class := "grid"
		if line.at == 1 {
			class = "target"
		}
		gridLine(&b, class, across(line.at), line.text, len(all))
	}
	for i, s := range all {
		reference, class := 1.0, "dot"
		if s.Target > 0 {
			reference = s.Target
			class = "dot missed"
			if s.Met {
				class = "dot met"
			}
		}
		y := header + row*i + row/2
		name(&b, s, y)
		sorted := slices.Sorted(slices.Values(s.Values))
		fmt.Fprintf(&b, `<line class="range" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, across(sorted[0]/reference), across(sorted[len(sorted)-1]/reference), y, y)
		for _, v := range s.Values {
			switch at := v / reference; {
			case at > reach:
				fmt.Fprintf(&b, `<path class="%s" d="M%d %dl-7 -4v8z"><title>%.4g</title></path>`, class, left+wide+3, y, v)
			case at < 1/reach:
				fmt.Fprintf(&b, `<path class="%s" d="M%d %dl7 -4v8z"><title>%.4g</title></path>`, class, left-3, y, v)
			default:
				fmt.Fprintf(&b, `<circle class="%s" cx="%.1f" cy="%d" r="3.5"><title>%.4g</title></circle>`, class, across(at), y, v)
			}
		}
		middle := across(Median(sorted) / reference)
		fmt.Fprintf(&b, `<line class="axis" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, middle, middle, y-7, y+7)
	}
	return end(&b)
}

// across is where a multiple of the reference stands.
func across(multiple float64) float64 {
	at := math.Log(min(max(multiple, 1/reach), reach)) / math.Log(reach) // -1 to 1
	return left + wide*(at+1)/2
}

// Rates draws a bar for each series, from 0 to its median, with a line from the smallest to the largest.
func Rates(all []Series) template.HTML {
	most := 0.0
	for _, s := range all {
		most = max(most, slices.Max(s.Values))
	}
	x := func(v float64) float64 { return left + wide*v/most }
	var b strings.Builder
	begin(&b, len(all), "Each contestant's median as a bar, and a line from its slowest to its fastest run.")
	gridLine(&b, "axis", left, "0", len(all))
	for i, s := range all {
		y := header + row*i
		name(&b, s, y+row/2)
		fmt.Fprintf(&b, `<rect class="bar" x="%d" y="%d" width="%.1f" height="%d"/>`, left, y+inset, x(Median(s.Values))-left, row-2*inset)
		fmt.Fprintf(&b, `<line class="axis" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, x(slices.Min(s.Values)), x(slices.Max(s.Values)), y+row/2, y+row/2)
	}
	return end(&b)
}

// Median returns the middle of values, of which there is at least one.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

func begin(b *strings.Builder, rows int, says string) {
	fmt.Fprintf(b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, left+wide+right, header+row*rows+4, says)
}

func end(b *strings.Builder) template.HTML {
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // all texts in it are escaped
}

func gridLine(b *strings.Builder, class string, x float64, text string, rows int) {
	fmt.Fprintf(b, `<text class="label" x="%.1f" y="14" text-anchor="middle">%s</text><line class="%s" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`,
		x, text, class, x, x, header-4, header+row*rows)
}

func name(b *strings.Builder, s Series, y int) {
	fmt.Fprintf(b, `<text class="label" x="%d" y="%d" text-anchor="end">%s</text><text class="value" x="%d" y="%d">%s</text>`,
		left-12, y+4, html.EscapeString(s.Name), left+wide+12, y+4, html.EscapeString(s.Text))
}
