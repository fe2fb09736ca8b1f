package devstack

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/internal/leftover"
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
	return leftover.Dir(t)
}

const (
	waitFor = 20 * time.Second
	tick    = 10 * time.Millisecond
)

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

// eventually polls until nothing is left, for at most 10 seconds.
func eventuallyNothing(t *testing.T, dir string) {
	t.Helper()
	var left []string
	require.Eventually(t, func() bool {
		left = leftover.In(t, dir)
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
