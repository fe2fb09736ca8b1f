package output

import (
	"strings"
	"unicode/utf8"
)

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
