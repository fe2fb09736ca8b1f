package main

import (
	"math"
	"os"
	"strconv"
	"strings"
)

// processors is how long the machine's processors have worked and stood idle since it started, in ticks: proc(5), stat.
type processors struct{ busy, idle float64 }

// readProcessors returns zero where the system does not tell.
func readProcessors() (p processors) {
	stat, _ := os.ReadFile("/proc/stat") // not there but on Linux
	line, _, _ := strings.Cut(string(stat), "\n")
	for i, field := range strings.Fields(line) {
		ticks, _ := strconv.ParseFloat(field, 64)
		switch i {
		case 0, 9, 10: // the word cpu; what guests took, which user time contains
		case 4, 5: // idle, and idle while a disk works
			p.idle += ticks
		default:
			p.busy += ticks
		}
	}
	return p
}

// busySince returns which share of the processors has worked since then, 0 to 1; NaN where it is not known.
func busySince(then processors) float64 {
	now := readProcessors()
	busy, idle := now.busy-then.busy, now.idle-then.idle
	if busy+idle <= 0 {
		return math.NaN()
	}
	return busy / (busy + idle)
}

// busyText is what stands behind a rate in a plot.
func busyText(shares []float64) string {
	if text := percent(shares); text != "" {
		return " (" + text + " busy)"
	}
	return ""
}

// percent writes a share, and nothing for one that is not known.
func percent(shares []float64) string {
	share := median(shares)
	if math.IsNaN(share) {
		return ""
	}
	return strconv.Itoa(int(math.Round(100*share))) + "%"
}
