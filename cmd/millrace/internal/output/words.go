package output

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Count is a number of things: "1 event", "2 events", "2 processes", "2 entries".
func Count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %s", n, Plural(noun))
}

// Plural is the noun for any number but one.
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

// Pick is the word for one thing, or the one for any other number of things.
func Pick[N int | int64](n N, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// Duration is rounded to what a person wants to know: "<1s", "87s", "5m30s", "42m", "5h10m", "30h", "12d".
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

// two writes a duration in two units, and in the larger one alone where nothing is left for the other.
func two(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d%s", d/large, largeName)
	if rest := d % large / small; rest > 0 {
		text += fmt.Sprintf("%d%s", rest, smallName)
	}
	return text
}

// Cut shortens text to so many characters, the last of which is "…" then.
func Cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return strings.TrimRight(string([]rune(text)[:max(width-1, 0)]), " ") + "…"
}

// Fold breaks paragraphs, which empty lines separate, into lines of so many characters at most. Lines that begin with a space
// stay as they are.
func Fold(text string, width int) string {
	var folded, paragraph []string
	end := func() {
		if len(paragraph) > 0 {
			folded = append(folded, wrap(strings.Join(paragraph, " "), width)...)
			paragraph = nil
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && line[0] != ' ' {
			paragraph = append(paragraph, line)
			continue
		}
		end()
		folded = append(folded, line)
	}
	end()
	return strings.Join(folded, "\n")
}

// wrap breaks text at spaces, so that the first line has room for so many characters, and the others, too. A word that is
// longer stands on a line of its own.
func wrap(text string, room int) (lines []string) {
	var line strings.Builder
	width := 0
	for _, word := range strings.Split(text, " ") {
		n := utf8.RuneCountInString(word)
		if width > 0 && width+1+n > room {
			lines = append(lines, line.String())
			line.Reset()
			width = 0
		}
		if width > 0 {
			line.WriteByte(' ')
			width++
		}
		line.WriteString(word)
		width += n
	}
	return append(lines, line.String())
}
