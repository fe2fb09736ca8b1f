package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// cell is a place of the terminal. Its look is what the escape sequence m says, as far as films show it.
type cell struct {
	char rune
	look look
}

type look struct {
	colour int // 31 to 36; 0: none
	bold   bool
	dim    bool
}

// terminal is the screen of a terminal: as much of one as a program that draws its progress needs.
type terminal struct {
	screen   [][]cell
	row, col int
	look     look
}

func newTerminal(columns, rows int) *terminal {
	t := &terminal{screen: make([][]cell, rows)}
	for n := range t.screen {
		t.screen[n] = blank(columns)
	}
	return t
}

func blank(columns int) []cell {
	line := make([]cell, columns)
	for n := range line {
		line[n].char = ' '
	}
	return line
}

// print does what the text says. A sequence that it does not know is an error: the film would differ from what was seen.
func (t *terminal) print(text string) error {
	for text != "" {
		if arguments, ok := strings.CutPrefix(text, "\x1b["); ok {
			end := strings.IndexFunc(arguments, func(r rune) bool { return r >= '@' && r <= '~' })
			if end < 0 {
				return fmt.Errorf("an escape sequence has no end: %q", text)
			}
			if err := t.control(arguments[end], arguments[:end]); err != nil {
				return err
			}
			text = arguments[end+1:]
			continue
		}
		char, size := utf8.DecodeRuneInString(text)
		text = text[size:]
		switch char {
		case '\r':
			t.col = 0
		case '\n':
			t.down()
		case '\x1b', '\t', '\b', utf8.RuneError:
			return fmt.Errorf("this terminal knows no %q", char)
		default:
			if t.col == len(t.screen[t.row]) {
				t.col = 0
				t.down()
			}
			t.screen[t.row][t.col] = cell{char, t.look}
			t.col++
		}
	}
	return nil
}

func (t *terminal) down() {
	if t.row++; t.row == len(t.screen) {
		t.row--
		t.screen = append(t.screen[1:], blank(len(t.screen[0])))
	}
}

func (t *terminal) control(final byte, arguments string) error {
	numbers := []int{}
	for a := range strings.SplitSeq(arguments, ";") {
		n, err := strconv.Atoi(a)
		if err != nil && a != "" {
			return fmt.Errorf("this terminal knows no sequence %q", arguments+string(final))
		}
		numbers = append(numbers, n)
	}
	switch {
	case final == 'A':
		t.row = max(t.row-max(numbers[0], 1), 0)
	case final == 'K' && numbers[0] == 0:
		for n := t.col; n < len(t.screen[t.row]); n++ {
			t.screen[t.row][n] = cell{char: ' '}
		}
	case final == 'm':
		for _, n := range numbers {
			switch {
			case n == 0:
				t.look = look{}
			case n == 1:
				t.look.bold = true
			case n == 2:
				t.look.dim = true
			case n >= 31 && n <= 36:
				t.look.colour = n
			default:
				return fmt.Errorf("this terminal knows no colour %d", n)
			}
		}
	default:
		return fmt.Errorf("this terminal knows no sequence %q", arguments+string(final))
	}
	return nil
}
