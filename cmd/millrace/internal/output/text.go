package output

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-go/millrace/internal/words"
)

// Readable reports whether b is text that contains nothing that affects a terminal.
func Readable(b []byte) bool {
	return utf8.Valid(b) && !strings.ContainsFunc(string(b), func(r rune) bool { return !unicode.IsGraphic(r) && r != '\n' && r != '\t' })
}

// Legible returns untrusted text unchanged if it is readable, otherwise quoted.
func Legible(b []byte) string {
	if Readable(b) {
		return string(b)
	}
	return strconv.QuoteToGraphic(string(b)) // backslashes in it are quoted too, so that the result is unambiguous
}

// Lines makes untrusted text of several lines safe for a terminal.
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
