// Package diff compares two texts line by line.
package diff

import "strings"

// Line is a line of one text or of both.
type Line struct {
	Op   Op
	Text string
}

// Op says in which of the texts a line is.
type Op string

// The values of Op.
const (
	Same    Op = "same"
	Removed Op = "removed"
	Added   Op = "added"
	Left    Op = "left" // lines of both texts that are omitted
)

const (
	// around is the number of lines that are kept beside a change.
	around = 3
	// maxCells bounds the table of pairs of lines. In larger texts all lines between the common beginning and end count as changed.
	maxCells = 1 << 22
)

// Lines returns the changes from a to b, without lines that are far from a change. It returns nil for equal texts.
func Lines(a, b string) []Line {
	if a == b {
		return nil
	}
	return short(all(strings.Split(a, "\n"), strings.Split(b, "\n")))
}

// all returns every line of both texts.
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

// between finds the longest common subsequence of lines.
func between(a, b []string) (lines []Line) {
	common := make([][]int, len(a)+1) // common[i][j]: its length for a[i:] and b[j:]
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

// short omits lines that are far from a change.
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
