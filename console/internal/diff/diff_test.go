package diff

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestLines(t *testing.T) {
	t.Parallel()
	write := func(lines []Line) string {
		var all strings.Builder
		for _, l := range lines {
			all.WriteString(map[Op]string{Same: " ", Removed: "-", Added: "+", Left: "…"}[l.Op] + l.Text + "|")
		}
		return all.String()
	}
	for _, c := range [][3]string{
		{"", "", ""},
		{"a", "a", ""},
		{"a\nb\nc", "a\nB\nc", " a|-b|+B| c|"},
		{"a", "a\n", " a|+|"},
		{"", "x", "-|+x|"},
		{"a\nb\nc\nd", "b\nc\nd\na", "-a| b| c| d|+a|"},
		{"1\n2\n3\n4\n5\n6\n7\n8\n9", "1\n2\n3\n4\n5x\n6\n7\n8\n9", "…| 2| 3| 4|-5|+5x| 6| 7| 8|…|"},
	} {
		assert.Equal(t, c[2], write(Lines(c[0], c[1])), "%q %q", c[0], c[1])
	}
}

// The same and the removed lines are the old text; the same and the added lines are the new text.
func TestEveryLineIsTold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.SampledFrom([]string{"", "a", "b", "c"})
		a, b := rapid.SliceOf(line).Draw(t, "a"), rapid.SliceOf(line).Draw(t, "b")
		var former, changed []string
		for _, l := range all(a, b) {
			if l.Op != Added {
				former = append(former, l.Text)
			}
			if l.Op != Removed {
				changed = append(changed, l.Text)
			}
		}
		assert.Equal(t, strings.Join(a, "\n"), strings.Join(former, "\n"))
		assert.Equal(t, strings.Join(b, "\n"), strings.Join(changed, "\n"))
	})
}

// Long texts need no table of all pairs of lines.
func TestManyLines(t *testing.T) {
	t.Parallel()
	lines := Lines("same\n"+strings.Repeat("a\n", 50_000)+"end", "same\n"+strings.Repeat("b\n", 50_000)+"end")
	assert.Len(t, lines, 100_000+2)
	assert.Equal(t, Line{Same, "same"}, lines[0])
	assert.Equal(t, Line{Added, "b"}, lines[100_000])
}
