package plot_test

import (
	"encoding/xml"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/bench/plot"
)

// numbers are those of an attribute, in their order.
func numbers(t *testing.T, svg, element, attribute string) (all []float64) {
	t.Helper()
	for _, m := range regexp.MustCompile(`<`+element+` [^>]*?\b`+attribute+`="([0-9.]+)"`).FindAllStringSubmatch(svg, -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		all = append(all, v)
	}
	return all
}

// wellFormed fails when a text is taken for markup.
func wellFormed(t *testing.T, svg string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); err != nil {
			require.ErrorIs(t, err, io.EOF)
			return
		}
	}
}

func TestRatiosStandAtTheirMultipleOfTheTarget(t *testing.T) {
	t.Parallel()
	svg := string(plot.Ratios([]plot.Series{
		{Name: "<met>", Values: []float64{2, 4, 1}, Text: "2 & more", Target: 2, Met: true},
		{Name: "missed", Values: []float64{1}, Text: "1.00", Target: 2},
		{Name: "without a target", Values: []float64{1}, Text: "1.00"},
		{Name: "far beyond", Values: []float64{1500, 0.001}, Text: "750", Target: 2, Met: true},
	}))
	wellFormed(t, svg)
	x := numbers(t, svg, "circle", "cx")
	require.Len(t, x, 5)
	middle := x[0]
	assert.InDelta(t, x[1]-middle, middle-x[2], 0.2, "twice is as far as half")
	assert.Greater(t, x[1], middle)
	assert.InDelta(t, x[2], x[3], 0.01, "half of the target")
	assert.InDelta(t, middle, x[4], 0.01, "1 is the reference where there is no target")
	assert.Equal(t, 2, strings.Count(svg, `<path class="dot met"`), "two are beyond the axis")
	assert.Contains(t, svg, "<title>1500</title>")
	assert.Equal(t, 1, strings.Count(svg, `class="dot missed"`))
	assert.Contains(t, svg, "2 &amp; more")
}

func TestRatesBeginAtZero(t *testing.T) {
	t.Parallel()
	svg := string(plot.Rates([]plot.Series{
		{Name: "fast", Values: []float64{900, 1000, 800}, Text: "900"},
		{Name: "slow", Values: []float64{90}, Text: "90"},
	}))
	wellFormed(t, svg)
	w := numbers(t, svg, "rect", "width")
	require.Len(t, w, 2)
	assert.InDelta(t, 10, w[0]/w[1], 0.02)
	assert.False(t, math.IsNaN(w[0]))
}

func TestMedian(t *testing.T) {
	t.Parallel()
	assert.InDelta(t, 2, plot.Median([]float64{3, 1, 2}), 0)
	assert.InDelta(t, 1.5, plot.Median([]float64{2, 1}), 0)
}
