package docs

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each promise names the test that tries to break it.
func TestEachPromiseHasItsTest(t *testing.T) {
	t.Parallel()
	r, err := read(os.DirFS("../.."))
	require.NoError(t, err)
	content, err := fs.ReadFile(r.files, "docs/guarantees.md")
	require.NoError(t, err)
	require.GreaterOrEqual(t, strings.Count(string(content), "| test |"), 6) // a table for each boundary, and the failures
	for _, trouble := range unproved(string(content)) {
		t.Error(trouble)
	}
}

// unproved are rows of tables whose head ends with the column "test", and that link no test.
func unproved(text string) (all []string) {
	proofs := false
	for i, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "|") {
			proofs = false
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		last := strings.TrimSpace(cells[len(cells)-1])
		switch {
		case last == "test":
			proofs = true
		case !proofs || strings.HasPrefix(last, "---"):
		case !linked.MatchString(last) || !testName.MatchString(last):
			all = append(all, fmt.Sprintf("line %d: no test: %s", i+1, strings.TrimSpace(cells[0])))
		}
	}
	return all
}

func TestUnprovedPromisesAreFound(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []string{"line 4: no test: bad"},
		unproved("| promise | test |\n|---|---|\n| good | [TestA](a_test.go) |\n| bad | soon |\n\n| other | table |\n|---|---|\n| x | y |\n"))
}
