package dev

import (
	"bytes"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
)

func TestDevExitCodeOfTheCommand(t *testing.T) {
	for _, test := range []struct {
		command []string
		code    int
	}{
		{[]string{"true"}, 0},
		{[]string{"sh", "-c", "exit 42"}, 42},
		{[]string{"sh", "-c", "exit $KEY"}, 7},
		{[]string{"sh", "-c", "kill -KILL $$"}, 128 + 9},
		{[]string{"/does/not/exist"}, exitNotRun},
	} {
		var output bytes.Buffer
		code := runCommand(test.command, []string{"KEY=7"}, nil, os.Stdin, &output, &output)
		assert.Equal(t, test.code, code, "%v: %s", test.command, &output)
	}
}

func TestDevInterruptedWhileStarting(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGINT
	stack := new(devstack.Stack)
	err := startStack(stack, []devstack.Service{devstack.Postgres}, signals)
	if err != nil { // a service that the environment names may be quicker
		assert.ErrorContains(t, err, "interrupt while the services started")
	}
	require.NoError(t, stack.Stop())
}

// Another terminal is told how to reach a database, but not a password that the environment named.
func TestDevShowsNoPasswordOfTheEnvironment(t *testing.T) {
	t.Setenv("MILLRACE_POSTGRES_DSN", "postgres://u:secret@127.0.0.1/x")
	var output bytes.Buffer
	printEnvironment(&output, []string{"MILLRACE_POSTGRES_DSN=postgres://u:secret@127.0.0.1/x", "PUBSUB_EMULATOR_HOST=127.0.0.1:1"})
	assert.Equal(t, "export MILLRACE_POSTGRES_DSN='postgres://u:xxxxx@127.0.0.1/x' # put the password in place of xxxxx\nexport PUBSUB_EMULATOR_HOST='127.0.0.1:1'\n", output.String())
	output.Reset()
	printEnvironment(&output, []string{"MILLRACE_POSTGRES_DSN=postgres://u:own@127.0.0.1/y"})
	assert.Equal(t, "export MILLRACE_POSTGRES_DSN='postgres://u:own@127.0.0.1/y'\n", output.String(), "it is the stack's own")
}
