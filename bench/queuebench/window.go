package main

import (
	"math"
	"math/bits"
	"sync"
	"time"
)

const (
	windowSeconds = 30
	// figures makes 1,024 parts of each power of two, so a percentile is right to a thousandth: three significant figures.
	figures = 10
	// longest is the largest wait in microseconds, 71 minutes; what waits longer counts as that.
	longest = 1<<32 - 1
	parts   = (32-figures-1)<<figures + 2<<figures
)

// window has the waits of the last 30 seconds, in a histogram for each second: 3 MB, however many there are.
type window struct {
	mu      sync.Mutex
	seconds [windowSeconds]struct {
		at     int64 // Unix time
		counts [parts]uint32
	}
}

func (w *window) note(now time.Time, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	second := &w.seconds[now.Unix()%windowSeconds]
	if second.at != now.Unix() {
		second.at = now.Unix()
		clear(second.counts[:])
	}
	second.counts[part(uint64(min(max(wait.Microseconds(), 0), longest)))]++
}

// percentiles returns the waits in milliseconds that these fractions of the window's do not exceed; 0 when it is empty.
func (w *window) percentiles(now time.Time, fractions ...float64) []float64 {
	counts, all := make([]uint64, parts), uint64(0)
	w.mu.Lock()
	for i := range w.seconds {
		if now.Unix()-w.seconds[i].at >= windowSeconds {
			continue
		}
		for p, n := range w.seconds[i].counts {
			counts[p] += uint64(n)
			all += uint64(n)
		}
	}
	w.mu.Unlock()
	found := make([]float64, len(fractions))
	for i, fraction := range fractions {
		rank, passed := uint64(math.Ceil(fraction*float64(all))), uint64(0)
		for p := 0; p < parts && passed < rank; p++ {
			passed += counts[p]
			found[i] = float64(least(p)) / 1000
		}
	}
	return found
}

// part is the place of a wait: exact for the small ones, then 1,024 for each power of two.
func part(wait uint64) int {
	shift := max(bits.Len64(wait)-figures-1, 0)
	return shift<<figures + int(wait>>shift)
}

// least is the smallest wait of a part.
func least(part int) uint64 {
	shift := max(part>>figures-1, 0)
	return uint64(part-shift<<figures) << shift
}
