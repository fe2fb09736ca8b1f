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

// room is a package below another: which of the other rooms it may import. One with others is pure: beside these rooms it
// may import only those packages, so that it has no I/O, no clock that runs and no goroutine.
type room struct{ rooms, others []string }

// rooms are those of each package that has some.
var rooms = map[string]map[string]room{
	"transport/kafka": {
		"backoff":    {others: []string{"context", "time"}},
		"lane":       {rooms: []string{"backoff"}, others: []string{"container/heap", "slices", "time"}},
		"ledger":     {rooms: []string{"backoff"}, others: []string{"slices", "time"}},
		"crashguard": {others: []string{"fmt", "maps", "slices", "strconv", "strings"}},
		"wire":       {},
		"sequence":   {rooms: []string{"wire"}},
		"meter":      {},
		"conn":       {rooms: []string{"backoff", "meter", "sequence", "wire"}},
		"produce":    {rooms: []string{"backoff", "conn", "sequence", "wire"}},
		"txn":        {rooms: []string{"backoff", "conn", "ledger", "produce", "sequence", "wire"}},
		"group":      {rooms: []string{"backoff", "conn", "crashguard", "lane", "produce", "sequence", "txn", "wire"}},
	},
	"transport/pubsub": {
		"wire": {},
		"setting": {rooms: []string{"wire"}, others: []string{
			"cmp", "errors", "fmt", "maps", "net/url", "path", "slices", "strconv", "strings", "time",
			"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb", "google.golang.org/protobuf/types/known/durationpb", "google.golang.org/protobuf/types/known/fieldmaskpb",
		}},
		"stream":   {},
		"conn":     {rooms: []string{"stream"}},
		"resource": {rooms: []string{"conn", "setting", "wire"}},
		"nack":     {others: []string{"time"}},
		"push":     {rooms: []string{"conn", "receive", "setting", "wire"}},
		"receive":  {rooms: []string{"conn", "nack", "publish", "resource", "setting", "stream", "wire"}},
		"publish":  {rooms: []string{"conn", "resource", "wire"}},
	},
	"outbox": {
		"backoff":    {others: []string{"time"}},
		"budget":     {others: []string{}},
		"gaps":       {others: []string{"slices"}},
		"deferral":   {others: []string{"hash/maphash"}},
		"term":       {others: []string{"time"}},
		"step":       {rooms: []string{"gaps"}, others: []string{"errors", "slices", "time"}},
		"delayed":    {rooms: []string{"backoff", "step"}, others: []string{"time"}},
		"topic":      {rooms: []string{"backoff", "step"}, others: []string{"cmp", "maps", "slices", "time"}},
		"lease":      {rooms: []string{"backoff", "step"}, others: []string{"cmp", "slices", "time"}},
		"crashguard": {rooms: []string{"step"}, others: []string{"time"}},
		"relay": {
			rooms:  []string{"backoff", "budget", "crashguard", "deferral", "delayed", "gaps", "lease", "step", "topic"},
			others: []string{"cmp", "errors", "fmt", "maps", "slices", "time"},
		},
		"progress":     {rooms: []string{"step"}, others: []string{"crypto/sha256", "encoding/binary", "errors", "fmt", "maps", "regexp", "slices", "time"}},
		"turn":         {others: []string{"context", "slices", "sync"}},
		"shardsql":     {others: []string{"fmt", "strings"}},
		"entry":        {others: []string{"encoding/binary", "errors", "fmt"}},
		"wake":         {},
		"snapshot":     {others: []string{"encoding/binary", "errors", "slices"}},
		"store":        {rooms: []string{"gaps", "progress", "snapshot", "step"}},
		"registration": {rooms: []string{"step", "store", "term"}},
		"backlog":      {rooms: []string{"store"}},
		"writer":       {rooms: []string{"entry", "store", "wake"}},
		"wal":          {rooms: []string{"gaps", "snapshot", "step", "store", "wake"}},
		"landing":      {rooms: []string{"entry", "store", "wake"}},
		"observe":      {rooms: []string{"landing", "step", "store", "wal"}},
	},
	"cmd/millrace": {
		"output": {},
		"cli":    {rooms: []string{"output"}},
		"dead":   {rooms: []string{"cli", "output"}},
		"outbox": {rooms: []string{"cli", "output"}},
		"dev":    {rooms: []string{"cli"}},
	},
	"console": {
		"diff":      {others: []string{"strings"}},
		"format":    {},
		"mask":      {rooms: []string{"format"}},
		"cache":     {},
		"jobs":      {},
		"brokers":   {rooms: []string{"figures"}},
		"bucket":    {others: []string{"sync", "time"}},
		"live":      {},
		"guard":     {},
		"audit":     {},
		"filter":    {},
		"replays":   {rooms: []string{"format", "mask"}},
		"payload":   {rooms: []string{"guard", "mask"}},
		"figures":   {rooms: []string{"cache", "format", "waterfall"}},
		"waterfall": {others: []string{"slices", "time"}},
		"fanout":    {others: []string{"fmt", "runtime/debug", "sync"}},
		"assets":    {rooms: []string{"format"}},
		"act":       {rooms: []string{"figures", "filter", "format", "jobs", "replays"}},
	},
	"middleware/claim": {
		"circuit":    {others: []string{"time"}},
		"slot":       {others: []string{"maps", "slices", "time"}},
		"store":      {},
		"warm":       {},
		"fault":      {rooms: []string{"store"}},
		"batch":      {rooms: []string{"store", "warm"}},
		"crashguard": {rooms: []string{"store"}},
		"redelivery": {rooms: []string{"fault", "store"}},
		"telemetry":  {rooms: []string{"store"}},
	},
	"framework": {
		"budget":    {others: []string{"fmt", "strings", module + "transport"}},
		"source":    {},
		"payload":   {},
		"telemetry": {},
		"web":       {},
		"expire":    {},
		"cloud":     {rooms: []string{"payload"}},
		"broker":    {rooms: []string{"source"}},
		"database":  {rooms: []string{"budget"}},
		"health":    {rooms: []string{"database", "web"}},
		"life":      {rooms: []string{"web"}},
	},
	"framework/devstack": {
		"machine":    {},
		"watchdog":   {rooms: []string{"machine"}},
		"pgbinaries": {rooms: []string{"machine"}},
		"streams":    {},
		"fakepubsub": {},
		"kafkaview":  {},
		"fakekafka":  {},
		"leftover":   {},
	},
}

// sections of docs/design.md have a table of the rooms.
var sections = map[string]string{
	"transport/kafka": "Kafka", "transport/pubsub": "Pub/Sub", "outbox": "The outbox", "cmd/millrace": "The command", "middleware/claim": "The claim", "console": "The console",
	"framework": "The framework", "framework/devstack": "The development stack",
}

func TestRooms(t *testing.T) {
	t.Parallel()
	design, err := os.ReadFile("../../docs/design.md")
	require.NoError(t, err)
	for pkg, rooms := range rooms {
		_, section, written := strings.Cut(string(design), "\n## "+sections[pkg]+"\n")
		require.True(t, written, "docs/design.md has no section about %s", pkg)
		section, _, _ = strings.Cut(section, "\n## ")
		internal := module + pkg + "/internal/"
		found := map[string]bool{}
		for _, line := range list(t, "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, "./"+pkg+"/internal/...") {
			words := strings.Fields(line)
			name := strings.TrimPrefix(words[0], internal)
			room, known := rooms[name]
			if !assert.True(t, known, "%s/internal/%s is no room that this test knows", pkg, name) {
				continue
			}
			found[name] = true
			assert.Contains(t, section, "\n| `"+name+"` |", "docs/design.md does not say what %s/internal/%s is", pkg, name)
			for _, imported := range words[1:] {
				if other, within := strings.CutPrefix(imported, internal); within {
					assert.Contains(t, room.rooms, other, "%s/internal/%s imports %s", pkg, name, other)
				} else if room.others != nil {
					assert.Contains(t, room.others, imported, "%s/internal/%s is pure, and imports %s", pkg, name, imported)
				}
				assert.NotEqual(t, module+pkg, imported, "%s imports the package that it serves", name)
			}
		}
		require.Len(t, found, len(rooms), pkg)
	}
}

// A package that has grown too large hides what it is about.
func TestPackagesAreSmall(t *testing.T) {
	t.Parallel()
	const mostFiles, mostLines = 20, 2500
	for _, dir := range list(t, "-f", "{{.Dir}}", "./...") {
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
