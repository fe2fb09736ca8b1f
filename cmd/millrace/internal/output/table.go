package output

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace-go/millrace/internal/words"
)

// Column is a column of a table. Only on a terminal, a column without any value is left out, and a table that is too wide is made
// narrower: first text is cut, then columns are left out, the last one first.
type Column struct {
	Head  string
	Cut   bool // its text may be cut
	Spare bool // it may be left out
	ID    bool // it has IDs, which are abbreviated

	// Paint colours a cell; nil: it stays plain.
	Paint func(cell string) string
}

// Columns parses names of columns, which may end in marks: "~" for Cut, "?" for Spare, "#" for ID.
func Columns(names string) []Column {
	heads := strings.Fields(names)
	columns := make([]Column, len(heads))
	for i, word := range heads {
		head := strings.TrimRight(word, "~?#")
		marks := word[len(head):]
		columns[i] = Column{Head: head, Cut: strings.Contains(marks, "~"), Spare: strings.Contains(marks, "?"), ID: strings.Contains(marks, "#")}
	}
	return columns
}

const (
	gap = 2
	// enough is the width to which text is cut before columns are left out; least is the width to which it is cut before a table stays
	// too wide.
	enough, least = 32, 8
)

// Table prints rows of cells below the columns' heads, with a dash for an empty cell.
func (t Terminal) Table(w io.Writer, columns []Column, rows [][]string) {
	shown, leftOut := t.fit(columns, rows)
	write := func(cell func(c shownColumn) (text string, paint func(string) string)) {
		var line strings.Builder
		for i, c := range shown {
			text, paint := cell(c)
			text = cut(text, c.width, t.Is())
			padding := c.width - utf8.RuneCountInString(text) + gap
			if paint != nil {
				text = paint(text)
			}
			line.WriteString(text)
			if i < len(shown)-1 {
				line.WriteString(strings.Repeat(" ", max(padding, gap)))
			}
		}
		fmt.Fprintln(w, line.String())
	}
	write(func(c shownColumn) (string, func(string) string) { return c.Head, t.Dim })
	for r := range rows {
		write(func(c shownColumn) (string, func(string) string) {
			if c.cells[r] == "" {
				return "-", t.Dim
			}
			return c.cells[r], c.Paint
		})
	}
	if len(leftOut) > 0 {
		fmt.Fprintln(w, t.Dim("Not shown: "+strings.Join(leftOut, ", ")+" (see -o json, or use a wider terminal)"))
	}
}

func cut(text string, width int, may bool) string {
	if !may {
		return text
	}
	return words.Cut(text, width)
}

// shownColumn is a column that is not left out.
type shownColumn struct {
	Column
	cells []string
	width int
}

// fit decides which columns to show, and how wide. It also returns the columns that it left out because the terminal is too narrow.
func (t Terminal) fit(columns []Column, rows [][]string) (shown []shownColumn, leftOut []string) {
	for i, column := range columns {
		c := shownColumn{Column: column, cells: make([]string, len(rows)), width: utf8.RuneCountInString(column.Head)}
		empty := len(rows) > 0
		for r, row := range rows {
			c.cells[r] = row[i]
			empty = empty && row[i] == ""
		}
		if t.Is() && empty {
			continue
		}
		if t.Is() && c.ID {
			c.cells = words.Abbreviate(c.cells)
		}
		for _, cell := range c.cells {
			c.width = max(c.width, utf8.RuneCountInString(cell))
		}
		shown = append(shown, c)
	}
	if !t.Is() {
		return shown, nil
	}
	for {
		if t.squeeze(shown, enough) {
			return shown, leftOut
		}
		last := -1
		for i, c := range shown {
			if c.Spare {
				last = i
			}
		}
		if last < 0 {
			break
		}
		leftOut = slices.Insert(leftOut, 0, shown[last].Head)
		shown = slices.Delete(shown, last, last+1)
	}
	t.squeeze(shown, least)
	return shown, leftOut
}

// squeeze cuts columns, the widest first, down to the given width at least. It reports whether the table fits then; if not, the columns
// are unchanged.
func (t Terminal) squeeze(shown []shownColumn, to int) bool {
	over := -gap - t.Width
	for _, c := range shown {
		over += c.width + gap
	}
	widths := make([]int, len(shown))
	for i, c := range shown {
		widths[i] = c.width
	}
	for over > 0 {
		widest := -1
		for i, c := range shown {
			if c.Cut && widths[i] > max(to, utf8.RuneCountInString(c.Head)) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			if to > least {
				return false
			}
			break
		}
		widths[widest]--
		over--
	}
	for i := range shown {
		shown[i].width = widths[i]
	}
	return over <= 0
}
