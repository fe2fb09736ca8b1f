package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// One page of 24 took a second, and page_p95_ms, which pooled all pages, said 1 ms.
func TestConsoleFigureIsTheSlowestPage(t *testing.T) {
	t.Parallel()
	pages := make([][]float64, 24)
	for i := range pages {
		for range 50 {
			pages[i] = append(pages[i], 1)
		}
	}
	for i := range pages[7] {
		pages[7][i] = 1000
	}
	slowest, ms := worst(pages)
	assert.Equal(t, 7, slowest)
	assert.GreaterOrEqual(t, ms, 1000.0)
}
