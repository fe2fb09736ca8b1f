// Package words has the words in which the command and the console describe events: numbers and durations for people, states, reasons,
// and untrusted text on one line.
package words

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Count formats a number of things: "1 event", "2 events", "2 processes", "2 entries".
func Count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %s", n, Plural(noun))
}

// Plural returns the plural of the noun.
func Plural(noun string) string {
	stem, ends := strings.CutSuffix(noun, "y")
	switch {
	case ends && !strings.HasSuffix(stem, "a") && !strings.HasSuffix(stem, "e") && !strings.HasSuffix(stem, "o"):
		return stem + "ies"
	case strings.HasSuffix(noun, "s"), strings.HasSuffix(noun, "x"), strings.HasSuffix(noun, "ch"):
		return noun + "es"
	}
	return noun + "s"
}

// Pick returns one for a single thing, otherwise many.
func Pick[N int | int64](n N, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// Duration rounds a duration for people: "<1s", "87s", "5m30s", "42m", "5h10m", "30h", "12d".
func Duration(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return "<1s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 10*time.Minute:
		return two(d, time.Minute, "m", time.Second, "s")
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 8*time.Hour:
		return two(d, time.Hour, "h", time.Minute, "m")
	case d < 2*day:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/day)
}

// two formats a duration in two units, or only in the larger one if nothing is left for the other.
func two(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d%s", d/large, largeName)
	if rest := d % large / small; rest > 0 {
		text += fmt.Sprintf("%d%s", rest, smallName)
	}
	return text
}

// Bytes returns a number of bytes in the largest unit of which there is at least one.
func Bytes(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%d MB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d kB", n>>10)
	}
	return Count(n, "byte")
}

// Cut shortens text to that many characters, with "…" as the last one.
func Cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return strings.TrimRight(string([]rune(text)[:max(width-1, 0)]), " ") + "…"
}
