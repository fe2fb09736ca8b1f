package output

import (
	"strings"
	"unicode/utf8"
)

// Fold wraps paragraphs, which are separated by empty lines, at that many characters. It does not change lines that begin with a space.
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

// wrap breaks text at spaces into lines of at most room characters. A longer word gets its own line.
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
