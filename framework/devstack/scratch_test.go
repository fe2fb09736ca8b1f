package devstack

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/notrun"
)

// scratch makes a temporary directory in which all rooms of the test appear, and an environment that names no service.
// When the test ends nothing may be left in it, nor any process that mentions it.
func scratch(t *testing.T) string {
	t.Helper()
	for _, name := range variable {
		t.Setenv(name, "")
	}
	t.Setenv(requireVariable, "")
	// Not t.TempDir, which is closed to the user that PostgreSQL runs as.
	dir, err := os.MkdirTemp("/tmp", "devstack-test-") //nolint:usetesting // see above
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		assert.Empty(t, leftIn(t, dir))
		assert.NoError(t, os.RemoveAll(dir))
	})
	return dir
}

// requiredAtStart is what scratch takes out of the environment.
var requiredAtStart = os.Getenv(requireVariable)

// needs fails the test by the error, or skips it where the error says that this machine lacks what the test needs, unless
// that must be there.
func needs(t *testing.T, name string, err error) {
	t.Helper()
	if errors.Is(err, ErrAbsent) {
		t.Setenv(requireVariable, requiredAtStart)
		if !Required(name) {
			notrun.Skip(t, Need(name), err)
		}
	}
	require.NoError(t, err)
}

// leftIn lists the files in the directory and the processes that mention it.
func leftIn(t *testing.T, dir string) []string {
	t.Helper()
	var left []string
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), "millrace-embedded-postgres-") { // they stay for the next stack
			left = append(left, entry.Name())
		}
	}
	listing, err := exec.Command("ps", "-A", "-o", "pid=,args=").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(listing)) {
		if strings.Contains(line, dir) {
			left = append(left, strings.TrimSpace(line))
		}
	}
	return left
}

// eventually polls until nothing is left, for at most 10 seconds.
func eventuallyNothing(t *testing.T, dir string) {
	t.Helper()
	var left []string
	require.Eventually(t, func() bool {
		left = leftIn(t, dir)
		return len(left) == 0
	}, time.Minute, 50*time.Millisecond, "left: %v", &left)
}

func closed(address string) bool {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return true
	}
	conn.Close()
	return false
}
