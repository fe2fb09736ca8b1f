package main

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestBusyProcessorsAreSeen(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		assert.Empty(t, percent([]float64{busySince(readProcessors())}), "nobody tells")
		return
	}
	then := readProcessors()
	ends := time.Now().Add(300 * time.Millisecond)
	var working sync.WaitGroup
	for range runtime.NumCPU() {
		working.Go(func() {
			for time.Now().Before(ends) {
			}
		})
	}
	working.Wait()
	share := busySince(then)
	assert.Greater(t, share, 0.5)
	assert.LessOrEqual(t, share, 1.0)
	assert.Regexp(t, `^ \(\d+% busy\)$`, busyText([]float64{share}))
	assert.Empty(t, busyText(nil), "a scenario that does not note it")
}
