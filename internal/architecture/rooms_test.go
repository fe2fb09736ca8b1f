package architecture

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// kafkaRooms are the packages below transport/kafka, and which of the others each may import. Those that standard lists are
// pure: beside these rooms they may import only those packages of the standard library, so that they have no I/O, no clock
// that runs and no goroutine.
var kafkaRooms = map[string]struct{ rooms, standard []string }{
	"backoff":  {standard: []string{"context", "time"}},
	"lane":     {rooms: []string{"backoff"}, standard: []string{"container/heap", "slices", "time"}},
	"ledger":   {rooms: []string{"backoff"}, standard: []string{"slices", "time"}},
	"wire":     {},
	"sequence": {rooms: []string{"wire"}},
	"conn":     {rooms: []string{"backoff", "sequence", "wire"}},
	"produce":  {rooms: []string{"backoff", "conn", "sequence", "wire"}},
	"txn":      {rooms: []string{"backoff", "conn", "ledger", "produce", "sequence", "wire"}},
	"group":    {rooms: []string{"backoff", "conn", "lane", "produce", "sequence", "txn", "wire"}},
}

func TestKafkaRooms(t *testing.T) {
	t.Parallel()
	const internal = module + "transport/kafka/internal/"
	found := map[string]bool{}
	for _, line := range list(t, "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, "./transport/kafka/internal/...") {
		words := strings.Fields(line)
		name := strings.TrimPrefix(words[0], internal)
		room, known := kafkaRooms[name]
		if !assert.True(t, known, "transport/kafka/internal/%s is no room that this test knows", name) {
			continue
		}
		found[name] = true
		for _, imported := range words[1:] {
			if other, within := strings.CutPrefix(imported, internal); within {
				assert.Contains(t, room.rooms, other, "%s imports %s", name, other)
			} else if room.standard != nil {
				assert.Contains(t, room.standard, imported, "%s is pure, and imports %s", name, imported)
			}
			assert.NotEqual(t, module+"transport/kafka", imported, "%s imports the package that it serves", name)
		}
	}
	require.Len(t, found, len(kafkaRooms))
}

// A room that has grown too large hides what it is about.
func TestKafkaRoomsAreSmall(t *testing.T) {
	t.Parallel()
	const mostFiles, mostLines = 20, 2500
	for _, dir := range append(list(t, "-f", "{{.Dir}}", "./transport/kafka/internal/..."), filepath.Join("..", "..", "transport", "kafka")) {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
		lines := 0
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			lines += strings.Count(string(text), "\n")
		}
		assert.LessOrEqual(t, len(files), mostFiles, "files of %s", dir)
		assert.LessOrEqual(t, lines, mostLines, "lines of %s", dir)
	}
}
