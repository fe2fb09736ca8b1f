// Package stagetest runs an example as a user does: as a command, on services that the tests share.
package stagetest

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/role"
)

// The test binary also runs as the command and as the processes of the example.
const commandVariable = "EXAMPLE_COMMAND"

// AsCommand in the environment makes the test binary run as the command.
const AsCommand = commandVariable + "=1"

// Main is for an example's TestMain.
func Main(m *testing.M, main func()) {
	if role.Name() != "" || os.Getenv(commandVariable) != "" {
		main()
		return
	}
	devtest.AtOnce(1.5) // each test is a whole example, which starts a dozen processes and mostly waits at its end
	devtest.Main(m)
}

// Command runs the example on the services and returns its exit status and its output.
func Command(t *testing.T, services []devstack.Service, args ...string) (code int, output string) {
	t.Helper()
	stack := devtest.Start(t, services...)
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), stack.Env()...), AsCommand)
	out, err := cmd.CombinedOutput()
	if err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		code = exit.ExitCode()
	}
	return code, string(out)
}

// Refused runs the command with each of the arguments, which it must refuse with the given text before it starts anything.
func Refused(t *testing.T, c stage.Command, texts map[string]string) {
	t.Helper()
	for args, text := range texts {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, stage.Trouble, c.Run(t.Context(), strings.Fields(args), &stdout, &stderr), args)
		assert.Contains(t, stderr.String(), text)
		assert.Empty(t, stdout.String())
	}
}

// Number returns the first number in the table's line with that name.
func Number(t *testing.T, output, name string) int {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + name + ` +(\d+)`).FindStringSubmatch(output)
	require.NotNil(t, found, "%s in:\n%s", name, output)
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}
