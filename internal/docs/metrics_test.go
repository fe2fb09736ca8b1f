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

// goCode is all of it but the tests.
func goCode(files fs.FS) (string, error) {
	var code strings.Builder
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(files, name)
		code.Write(text)
		return err
	})
	return code.String(), err
}

// Each metric that the documentation names is in the code.
func TestMetricsAreThere(t *testing.T) {
	t.Parallel()
	r, err := read(os.DirFS("../.."))
	require.NoError(t, err)
	code, err := goCode(r.files)
	require.NoError(t, err)
	named := 0
	for name := range r.documents {
		text, err := fs.ReadFile(r.files, name)
		require.NoError(t, err)
		for _, metric := range metrics(string(text)) {
			named++
			if !strings.Contains(code, `"`+metric+`"`) {
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

var (
	instrument = regexp.MustCompile(`(\w+)\(\s*"(millrace\.[a-z_.]+)", (?:metric\.WithUnit\()?"([^"]+)"`)
	metricRow  = regexp.MustCompile("(?m)^\\| `(millrace\\.[a-z_.]+)` \\| (\\w+) \\| (\\w+) \\|")
	kinds      = map[string]string{"Counter": "counter", "Histogram": "histogram", "Gauge": "gauge", "UpDownCounter": "gauge", "Int": "gauge", "Float": "gauge"}
)

// instruments are the metrics that Go code makes: name → type and unit.
func instruments(code string) map[string]string {
	found := map[string]string{}
	for _, m := range instrument.FindAllStringSubmatch(code, -1) {
		kind := m[1]
		for _, prefix := range []string{"Int64", "Float64", "Observable"} {
			kind = strings.TrimPrefix(kind, prefix)
		}
		if kinds[kind] == "" {
			continue // an attribute
		}
		found[m[2]] = kinds[kind] + " in " + strings.Trim(m[3], "{}")
	}
	return found
}

// docs/reference/metrics.md has each metric that the code makes, with its type and unit, and no other.
func TestEachMetricIsInTheReference(t *testing.T) {
	t.Parallel()
	code, err := goCode(os.DirFS("../.."))
	require.NoError(t, err)
	page, err := os.ReadFile("../../docs/reference/metrics.md")
	require.NoError(t, err)
	listed := map[string]string{}
	for _, m := range metricRow.FindAllStringSubmatch(string(page), -1) {
		listed[m[1]] = m[2] + " in " + m[3]
	}
	made := instruments(code)
	assert.Greater(t, len(made), 30)
	assert.Equal(t, made, listed)
}

func TestInstrumentsAreFound(t *testing.T) {
	t.Parallel()
	assert.Equal(t, map[string]string{"millrace.a.b": "counter in event", "millrace.c": "gauge in s", "millrace.d": "gauge in shard", "millrace.e": "gauge in message"},
		instruments(`m.Int64ObservableCounter(
			"millrace.a.b", metric.WithUnit("{event}")) m.Float64ObservableGauge("millrace.c", metric.WithUnit("s") gauges.Int("millrace.d", "{shard}", "x")
			m.Int64UpDownCounter("millrace.e", metric.WithUnit("{message}")) attribute.String("millrace.f", "g")`))
}
