package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Ratios are taken run by run, so that a slow minute of the machine, here the second run, does not count for one side.
func TestRatiosAreTakenRunByRun(t *testing.T) {
	t.Parallel()
	own := rates{name: "relay", perRun: []float64{200, 50, 210}}
	peer := rates{name: "skip_locked", perRun: []float64{100, 20, 100}}
	r := against(own, peer)
	assert.Equal(t, "vs_skip_locked", r.name)
	assert.Equal(t, []float64{2, 2.5, 2.1}, r.perRun)
	var out bytes.Buffer
	require.NoError(t, (&report{scenario: "s", ratios: []ratios{r}}).write(&out, true))
	assert.Equal(t, `{"scenario":"s","ratios":{"vs_skip_locked":2.1}}`+"\n", out.String())
}

func TestMedian(t *testing.T) {
	t.Parallel()
	values := []float64{3, 1, 2}
	assert.Equal(t, 2.0, median(values))
	assert.Equal(t, []float64{3, 1, 2}, values, "the order of the runs stays")
	assert.Equal(t, 2.5, median([]float64{4, 1, 3, 2}))
}

func TestThousands(t *testing.T) {
	t.Parallel()
	for value, want := range map[float64]string{0: "0", 999.4: "999", 999.5: "1,000", 1234567: "1,234,567"} {
		assert.Equal(t, want, thousands(value))
	}
}
