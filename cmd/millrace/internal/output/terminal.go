// Package output prints for people: in words, in tables that fit a terminal, in a few colours, and with a line that tells what
// takes long. What is not a terminal gets plain text that is neither cut nor wrapped.
package output

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Terminal is what people look at. The zero value is none, but a file or a pipe.
type Terminal struct {
	Width  int // in characters; 0: there is no terminal
	Colour bool
	Dumb   bool // it takes no control sequences
}

// Of finds out whether somebody looks at what is written there. Colours are left out where NO_COLOR is set, and on a terminal
// that is dumb.
func Of(w io.Writer) Terminal {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return Terminal{}
	}
	width, _, _ := term.GetSize(int(f.Fd())) // 0 where it does not tell
	dumb := os.Getenv("TERM") == "dumb"
	return Terminal{Width: cmp.Or(width, 80), Colour: os.Getenv("NO_COLOR") == "" && !dumb, Dumb: dumb}
}

// Is reports whether there is one.
func (t Terminal) Is() bool { return t.Width > 0 }

// Red is for what is wrong.
func (t Terminal) Red(text string) string { return t.paint("31", text) }

// Yellow is for what wants attention.
func (t Terminal) Yellow(text string) string { return t.paint("33", text) }

// Green is for what is as it should be.
func (t Terminal) Green(text string) string { return t.paint("32", text) }

// Dim is for what matters less.
func (t Terminal) Dim(text string) string { return t.paint("2", text) }

// Bold is for titles.
func (t Terminal) Bold(text string) string { return t.paint("1", text) }

func (t Terminal) paint(code, text string) string {
	if !t.Colour || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Paragraph writes a line of text that begins behind a label, which is painted as it is. On a terminal it is wrapped, with
// its further lines below the text.
func (t Terminal) Paragraph(w io.Writer, indent int, label string, paint func(string) string, text string) {
	fmt.Fprint(w, paint(fmt.Sprintf("%-*s", indent, label)))
	if !t.Is() || strings.Contains(text, "\n") {
		fmt.Fprintln(w, text)
		return
	}
	fmt.Fprintln(w, strings.Join(wrap(text, max(t.Width-indent, 20)), "\n"+strings.Repeat(" ", indent)))
}
