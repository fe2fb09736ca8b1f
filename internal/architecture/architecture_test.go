// Package architecture proves that the arrows between the packages run one way, on the full graph of dependencies: a
// linter sees only direct imports.
package architecture

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/millrace-go/millrace/"

// Families of packages that an arrow may not reach, by prefix.
var (
	postgres = []string{"github.com/jackc/"}
	pubsub   = []string{"cloud.google.com/", "google.golang.org/grpc", "github.com/ThreeDotsLabs/watermill-googlecloud"}
	kafka    = []string{"github.com/IBM/sarama", "github.com/twmb/franz-go", "github.com/ThreeDotsLabs/watermill-kafka"}
	brokers  = append(append([]string{module + "transport/pubsub", module + "transport/kafka"}, pubsub...), kafka...)
	upper    = []string{module + "framework", module + "console", module + "cmd", module + "examples", module + "bench"}
	// OpenTelemetry's protocol, which the framework exports traces by, is defined beside its form for gRPC.
	protocols = slices.DeleteFunc(slices.Clone(brokers), func(p string) bool { return p == "google.golang.org/grpc" })
	tests     = []string{"testing", "github.com/stretchr/", "go.uber.org/goleak"}
)

func TestArrowsRunOneWay(t *testing.T) {
	t.Parallel()
	for pkg, forbidden := range map[string][][]string{
		"pgtx":             {upper, brokers, tests, {module + "transport", module + "outbox", module + "middleware", "github.com/ThreeDotsLabs/"}},
		"transport":        {upper, brokers, tests, postgres, {module + "pgtx", module + "outbox", module + "middleware"}},
		"transport/memory": {upper, brokers, tests, postgres, {module + "pgtx", module + "outbox", module + "middleware"}},
		"transport/pubsub": {upper, kafka, tests, postgres, {module + "pgtx", module + "outbox", module + "middleware"}},
		"transport/kafka":  {upper, pubsub, tests, postgres, {module + "pgtx", module + "outbox", module + "middleware"}},
		"catalog":          {upper, brokers, tests, postgres, {module + "pgtx", module + "transport", module + "outbox", module + "middleware"}},
		"cloudevent":       {upper, brokers, tests, postgres, {module + "pgtx", module + "outbox", module + "middleware"}},
		"outbox":           {upper, brokers, tests, {module + "middleware", module + "outbox/outboxadmin"}},
		"outbox/...":       {upper, brokers, tests, {module + "middleware"}},
		"middleware/claim": {upper, brokers, tests, {module + "middleware/deadletter"}},
		"middleware/...":   {upper, brokers, tests},
		"framework":        {protocols, tests, {module + "cmd", module + "examples", module + "bench", module + "framework/devstack"}},
		"console":          {brokers, tests, {module + "framework", module + "cmd", module + "examples", module + "bench"}},
		"internal/...":     {upper, brokers},
	} {
		// Conformance suites may import what tests do.
		packages := slices.DeleteFunc(list(t, "./"+pkg), func(p string) bool {
			return strings.HasSuffix(p, "/claimtest") || strings.HasSuffix(p, "/keytest")
		})
		for _, dep := range list(t, append([]string{"-deps"}, packages...)...) {
			for _, family := range forbidden {
				for _, prefix := range family {
					assert.False(t, dep == prefix || strings.HasPrefix(dep, strings.TrimSuffix(prefix, "/")+"/"), "%s depends on %s", pkg, dep)
				}
			}
		}
	}
}

// What is only run is not imported.
func TestNobodyImportsPrograms(t *testing.T) {
	t.Parallel()
	for _, line := range list(t, "-f", "{{range .Imports}}{{$.ImportPath}} {{.}}\n{{end}}", "./...") {
		importer, imported, _ := strings.Cut(line, " ")
		for _, program := range []string{"examples", "bench", "cmd"} {
			within := strings.HasPrefix(importer, module+program)
			assert.False(t, strings.HasPrefix(imported, module+program) && !within, "%s imports %s", importer, imported)
		}
	}
}

// Kits for tests belong to tests.
func TestOnlyTestsImportTheKit(t *testing.T) {
	t.Parallel()
	const kit = module + "framework/millracetest"
	for _, line := range list(t, "-f", "{{range .Imports}}{{$.ImportPath}} {{.}}\n{{end}}", "./...") {
		importer, imported, _ := strings.Cut(line, " ")
		assert.NotEqual(t, kit, imported, "%s imports it outside of its tests", importer)
	}
}

func list(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	require.NoError(t, err)
	var lines []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	require.NotEmpty(t, lines)
	return lines
}
