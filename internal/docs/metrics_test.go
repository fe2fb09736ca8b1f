package docs

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A metric's name, or behind one the end of another one that differs in it: `millrace.a.b`, `.c`.
var metricName = regexp.MustCompile("`(millrace(?:\\.[a-z_]+){2,}|\\.[a-z_]+)`")

func metrics(text string) (names []string) {
	for line := range strings.Lines(text) {
		last := ""
		for _, m := range metricName.FindAllStringSubmatch(line, -1) {
			name := m[1]
			if strings.HasPrefix(name, ".") {
				if last == "" {
					continue // a file's extension
				}
				name = last[:strings.LastIndex(last, ".")] + name
			}
			last = name
			names = append(names, name)
		}
	}
	return names
}

// Each metric that the documentation names is in the code.
func TestMetricsAreThere(t *testing.T) {
	t.Parallel()
	r, err := read(os.DirFS("../.."))
	require.NoError(t, err)
	var code strings.Builder
	require.NoError(t, fs.WalkDir(r.files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(r.files, name)
		code.Write(text)
		return err
	}))
	named := 0
	for name := range r.documents {
		text, err := fs.ReadFile(r.files, name)
		require.NoError(t, err)
		for _, metric := range metrics(string(text)) {
			named++
			if !strings.Contains(code.String(), `"`+metric+`"`) {
				t.Errorf("%s: there is no metric %s", name, metric)
			}
		}
	}
	assert.Greater(t, named, 30)
}

func TestMetricsAreFound(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []string{"millrace.a.b_c", "millrace.a.d", "millrace.e.f.g"},
		metrics("| `millrace.a.b_c`, `.d` | `millrace.x`\nthen `.sql` and `millrace.e.f.g`"))
}
