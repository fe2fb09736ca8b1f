package docs

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// suites are packages of tests for the code of others: an Example has no testing.T, so that theirs only compile.
var suites = []string{"middleware/claim/claimtest", "middleware/idempotencykey/keytest", "transport/transporttest"}

// Whoever opens the documentation of a package finds code that runs there, with what it prints.
func TestEachPackageHasAnExample(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Name}} {{.Dir}}", "../../...").Output()
	require.NoError(t, err)
	base, err := filepath.Abs("../..")
	require.NoError(t, err)
	checked := 0
	for line := range strings.Lines(string(out)) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		folder, err := filepath.Rel(base, dir)
		require.NoError(t, err)
		folder = filepath.ToSlash(folder)
		if name == "main" || folder == "docs" || slices.Contains(strings.Split(folder, "/"), "internal") {
			continue
		}
		checked++
		examples := examplesIn(t, dir)
		ran := slices.ContainsFunc(examples, func(e *doc.Example) bool { return e.Output != "" })
		switch {
		case len(examples) == 0:
			t.Errorf("package %s has no Example: write one in %s/example_test.go", folder, folder)
		case !ran && !slices.Contains(suites, folder):
			t.Errorf("no Example of package %s ends with // Output: none of them is run", folder)
		}
	}
	assert.Greater(t, checked, len(suites))
}

// examplesIn are the examples of a package.
func examplesIn(t *testing.T, dir string) []*doc.Example {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	var parsed []*ast.File
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		one, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ParseComments)
		require.NoError(t, err)
		parsed = append(parsed, one)
	}
	return doc.Examples(parsed...)
}
