package output

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-go/millrace/internal/words"
)

// Readable reports whether it is text that cannot disturb a terminal.
func Readable(b []byte) bool {
	return utf8.Valid(b) && !strings.ContainsFunc(string(b), func(r rune) bool { return !unicode.IsGraphic(r) && r != '\n' && r != '\t' })
}

// Legible is text of others as it is, if it is readable, else quoted.
func Legible(b []byte) string {
	if Readable(b) {
		return string(b)
	}
	return strconv.QuoteToGraphic(string(b)) // also what it has of backslashes: it must not be ambiguous
}

// Lines is text of several lines that cannot disturb a terminal.
func Lines(text string) string {
	if Readable([]byte(text)) {
		return text
	}
	all := strings.Split(text, "\n")
	for i := range all {
		all[i] = words.OneLine(all[i])
	}
	return strings.Join(all, "\n")
}
