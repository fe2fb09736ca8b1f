// Package leftover is for tests of code that runs services: it provides a folder in which nothing may be left.
package leftover

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Dir makes a temporary directory in which the test's rooms are created. When the test ends, the directory must be empty, and no process
// may mention it.
func Dir(t *testing.T) string {
	t.Helper()
	// Not t.TempDir, which the user that PostgreSQL runs as may not enter.
	dir, err := os.MkdirTemp("/tmp", "devstack-test-") //nolint:usetesting // see above
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		assert.Empty(t, In(t, dir))
		assert.NoError(t, os.RemoveAll(dir))
	})
	return dir
}

// In lists the files in the directory and the processes that mention it.
func In(t *testing.T, dir string) []string {
	t.Helper()
	var left []string
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), "millrace-embedded-postgres-") { // they stay for the next stack
			left = append(left, entry.Name())
		}
	}
	listing, err := exec.Command("ps", "-A", "-o", "pid=,args=").Output() //nolint:noctx // a test's context has ended when Dir's cleanup runs
	require.NoError(t, err)
	for line := range strings.Lines(string(listing)) {
		if strings.Contains(line, dir) {
			left = append(left, strings.TrimSpace(line))
		}
	}
	return left
}
