package docs

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The first screen stays short, and its comparison says nothing of anybody without a source.
func TestREADME(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	readme := string(content)
	assert.Less(t, strings.Count(readme, "\n"), 150, "lines")
	_, comparison, found := strings.Cut(readme, "\n## What happens when something breaks\n")
	require.True(t, found)
	comparison, _, _ = strings.Cut(comparison, "\n\nEach cell")
	assert.GreaterOrEqual(t, strings.Count(comparison, "\n| "), 9, "rows")
	for _, trouble := range unsourced(comparison) {
		t.Error(trouble)
	}
}

// unsourced are cells of a table that link nothing, behind those that name the fault. The last one links a test; the others
// may say that it is the reader's own code.
func unsourced(table string) (all []string) {
	for n, line := range strings.Split(table, "\n") {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|-") || strings.TrimSpace(cells[0]) == "" {
			continue // the head
		}
		for c, cell := range cells[1:] {
			cell = strings.TrimSpace(cell)
			link := linked.FindStringSubmatch(cell)
			switch {
			case c == len(cells)-2 && (link == nil || !testName.MatchString(link[3])):
				all = append(all, fmt.Sprintf("line %d: no test: %s", n+1, cell))
			case link == nil && cell != "your code":
				all = append(all, fmt.Sprintf("line %d: no source: %s", n+1, cell))
			}
		}
	}
	return all
}

func TestUnsourcedCellsAreFound(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []string{"line 4: no source: bad", "line 4: no test: [good](b.go)"},
		unsourced("|  | A | B | C |\n|---|---|---|---|\n| x | [a](https://b) | your code | [good](b_test.go \"TestB\") |\n| y | bad | [a](b) | [good](b.go) |\n"))
}
