// Package output prints for people: text, tables that fit a terminal, a few colours, and a line that shows what takes long. Output that
// is not a terminal gets plain text, neither cut nor wrapped.
package output

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Terminal describes the output. The zero value is a file or a pipe.
type Terminal struct {
	Width  int // in characters; 0: there is no terminal
	Colour bool
	Dumb   bool // it does not support control sequences
}

// Of returns the terminal that w writes to. There are no colours if NO_COLOR is set or the terminal is dumb.
func Of(w io.Writer) Terminal {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return Terminal{}
	}
	width, _, _ := term.GetSize(int(f.Fd())) // 0 if it is not known
	dumb := os.Getenv("TERM") == "dumb"
	return Terminal{Width: cmp.Or(width, 80), Colour: os.Getenv("NO_COLOR") == "" && !dumb, Dumb: dumb}
}

// Is reports whether the output is a terminal.
func (t Terminal) Is() bool { return t.Width > 0 }

// Red is for problems.
func (t Terminal) Red(text string) string { return t.paint("31", text) }

// Yellow is for what needs attention.
func (t Terminal) Yellow(text string) string { return t.paint("33", text) }

// Green is for what is well.
func (t Terminal) Green(text string) string { return t.paint("32", text) }

// Dim is for less important text.
func (t Terminal) Dim(text string) string { return t.paint("2", text) }

// Bold is for titles.
func (t Terminal) Bold(text string) string { return t.paint("1", text) }

func (t Terminal) paint(code, text string) string {
	if !t.Colour || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Paragraph prints a text behind a painted label. On a terminal the text is wrapped, and its further lines are indented.
func (t Terminal) Paragraph(w io.Writer, indent int, label string, paint func(string) string, text string) {
	fmt.Fprint(w, paint(fmt.Sprintf("%-*s", indent, label)))
	if !t.Is() || strings.Contains(text, "\n") {
		fmt.Fprintln(w, text)
		return
	}
	fmt.Fprintln(w, strings.Join(wrap(text, max(t.Width-indent, 20)), "\n"+strings.Repeat(" ", indent)))
}
