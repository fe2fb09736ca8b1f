// Package diff tells two texts apart, line by line.
package diff

import "strings"

// Line is one of both texts, or of one of them.
type Line struct {
	Op   Op
	Text string
}

// Op says which of both texts has a line.
type Op string

// What becomes of a line.
const (
	Same    Op = "same"
	Removed Op = "removed"
	Added   Op = "added"
	Left    Op = "left" // lines that both have, and which are left out
)

const (
	// around is how many lines are kept beside one that differs.
	around = 3
	// maxCells bounds the table of pairs of lines. In larger texts all that stands between their equal ends differs.
	maxCells = 1 << 22
)

// Lines is how the lines of a became those of b, without those that are far from any change. It is nil for equal texts.
func Lines(a, b string) []Line {
	if a == b {
		return nil
	}
	return short(all(strings.Split(a, "\n"), strings.Split(b, "\n")))
}

// all has every line of both.
func all(a, b []string) (lines []Line) {
	var head, tail []Line
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		head, a, b = append(head, Line{Same, a[0]}), a[1:], b[1:]
	}
	end := 0
	for end < min(len(a), len(b)) && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	for _, text := range a[len(a)-end:] {
		tail = append(tail, Line{Same, text})
	}
	a, b = a[:len(a)-end], b[:len(b)-end]
	return append(append(head, between(a, b)...), tail...)
}

// between finds the longest lines that both have in common, in order.
func between(a, b []string) (lines []Line) {
	common := make([][]int, len(a)+1) // of what is behind line i of a and line j of b
	if len(a)*len(b) <= maxCells {
		for i := range common {
			common[i] = make([]int, len(b)+1)
		}
		for i := len(a) - 1; i >= 0; i-- {
			for j := len(b) - 1; j >= 0; j-- {
				if a[i] == b[j] {
					common[i][j] = common[i+1][j+1] + 1
				} else {
					common[i][j] = max(common[i+1][j], common[i][j+1])
				}
			}
		}
	} else {
		common = nil
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case common != nil && i < len(a) && j < len(b) && a[i] == b[j]:
			lines = append(lines, Line{Same, a[i]})
			i, j = i+1, j+1
		case i < len(a) && (common == nil || j == len(b) || common[i+1][j] >= common[i][j+1]):
			lines = append(lines, Line{Removed, a[i]})
			i++
		default:
			lines = append(lines, Line{Added, b[j]})
			j++
		}
	}
	return lines
}

// short leaves out what is far from any change.
func short(all []Line) (lines []Line) {
	near := make([]bool, len(all))
	for i, l := range all {
		if l.Op != Same {
			for j := max(i-around, 0); j <= min(i+around, len(all)-1); j++ {
				near[j] = true
			}
		}
	}
	for i, l := range all {
		switch {
		case near[i]:
			lines = append(lines, l)
		case i == 0 || near[i-1]:
			lines = append(lines, Line{Op: Left})
		}
	}
	return lines
}
