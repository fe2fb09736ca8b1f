package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
)

// The supported versions are the same wherever they stand: in the document, in the services for tests and in the stage that
// tests them.
func TestSupportedVersions(t *testing.T) {
	t.Parallel()
	rows := map[string][]string{}
	for line := range strings.Lines(contents(t, "docs/reference/versions.md")) {
		if cells := strings.Split(line, "|"); len(cells) == 6 {
			rows[strings.TrimSpace(cells[1])] = []string{strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3]), cells[4]}
		}
	}
	stage := map[string]string{}
	for _, m := range regexp.MustCompile(`\b((?:oldest|newest)_\w+)=([0-9.]+)`).FindAllStringSubmatch(contents(t, ".ci/run"), -1) {
		stage[m[1]] = m[2]
	}

	postgres := rows["PostgreSQL"]
	require.Len(t, postgres, 3)
	assert.Equal(t, []string{devstack.OldestPostgres, devstack.NewestPostgres}, postgres[:2])
	assert.Equal(t, []string{stage["oldest_postgres"], stage["newest_postgres"]}, postgres[:2])

	kafka := rows["Apache Kafka"]
	require.Len(t, kafka, 3)
	for i, name := range []string{"oldest_kafka", "newest_kafka"} {
		assert.True(t, strings.HasPrefix(stage[name], kafka[i]+"."), "%s is %s, not of %s", name, stage[name], kafka[i])
		assert.Contains(t, kafka[2], stage[name])
	}

	require.Len(t, rows["Go"], 3)
	assert.Contains(t, contents(t, "go.mod"), "\ngo "+rows["Go"][0])
}

func contents(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + name)
	require.NoError(t, err)
	return string(text)
}
