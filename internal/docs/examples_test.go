package docs

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each example is a row of the articles' tables, with a README and a test of its own, and takes -broker.
func TestExamplesAreListed(t *testing.T) {
	t.Parallel()
	r, err := read(os.DirFS("../.."))
	require.NoError(t, err)
	articles, err := fs.ReadFile(r.files, "docs/articles.md")
	require.NoError(t, err)
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\|[^|]*\\| `go run \\./(examples/\\w+)").FindAllStringSubmatch(string(articles), -1) {
		rows[m[1]] = true
	}
	folders, err := fs.ReadDir(r.files, "examples")
	require.NoError(t, err)
	listed := 0
	for _, f := range folders {
		folder := path.Join("examples", f.Name())
		if !f.IsDir() || f.Name() == "internal" {
			continue
		}
		listed++
		assert.Contains(t, rows, folder)
		assert.Contains(t, r.documents, folder+"/README.md")
		assert.NotEmpty(t, r.tests[folder+"/main_test.go"])
		program, err := fs.ReadFile(r.files, folder+"/main.go")
		require.NoError(t, err)
		assert.Contains(t, string(program), `"broker", `, "%s takes -broker", folder)
	}
	assert.GreaterOrEqual(t, listed, 5)
}
