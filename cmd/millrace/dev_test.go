package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
)

// millrace is the command as a process of its own, which owns neither a terminal nor a running service.
func millrace(t *testing.T, args ...string) (*exec.Cmd, *buffer) {
	t.Helper()
	command := exec.Command(os.Args[0], args...)
	for _, line := range os.Environ() {
		if !strings.HasPrefix(line, "MILLRACE_") && !strings.HasPrefix(line, "PUBSUB_EMULATOR_HOST=") {
			command.Env = append(command.Env, line)
		}
	}
	command.Env = append(command.Env, asMillrace+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	output := new(buffer)
	command.Stdout, command.Stderr = output, output
	return command, output
}

// buffer is a bytes.Buffer that is read while the process writes.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *buffer) await(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(b.String(), text) }, time.Minute, 10*time.Millisecond, "no %q", text)
}

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{nil, cli.ExitUsage, "Usage:\n  millrace\n  millrace [command]"},
		{[]string{"develop"}, cli.ExitUsage, `unknown command "develop"`},
		{[]string{"help"}, cli.ExitOK, "dev "},
		{[]string{"help", "bogus"}, cli.ExitUsage, "millrace help: unknown command \"bogus\" for \"millrace\"\n"},
		{[]string{"help", "outbox", "bogus"}, cli.ExitUsage, "millrace help: unknown command \"bogus\" for \"millrace outbox\"\n"},
		{[]string{"dev", "-h"}, cli.ExitOK, "--services"},
		{[]string{"dev", "--service=postgres"}, cli.ExitUsage, "unknown flag: --service"},
		{[]string{"dev", "--services=rabbit"}, cli.ExitUsage, `unknown service "rabbit"`},
		{[]string{"dev", "-services=redis"}, cli.ExitUsage, "unknown flag: -services=redis; want --services\n"},
		{[]string{"dev", "--services="}, cli.ExitUsage, "want at least one service"},
	} {
		var output bytes.Buffer
		assert.Equal(t, test.code, run(test.args, os.Stdin, &output, &output), "%v", test.args)
		assert.Contains(t, output.String(), test.says)
	}
}

func TestDevExitCode(t *testing.T) {
	command, output := millrace(t, "dev", "--services=pubsub", "--", "false")
	assert.Error(t, command.Run())
	assert.Equal(t, 1, command.ProcessState.ExitCode(), output)
	assert.Contains(t, output.String(), "millrace: pubsub: ")
}

// The command finds the services in its environment.
func TestDevEnvironment(t *testing.T) {
	command, output := millrace(t, "dev", "--", "sh", "-c", `echo "[$MILLRACE_POSTGRES_DSN] [$PUBSUB_EMULATOR_HOST] [$MILLRACE_KAFKA_BROKERS]"`)
	require.NoError(t, command.Run(), output)
	assert.Regexp(t, `\[postgres://postgres:\w+@127.0.0.1:\d+/postgres\?sslmode=disable\] \[127.0.0.1:\d+\] \[127.0.0.1:\d+\]`, output.String())
	assert.Contains(t, output.String(), "to use these services in another terminal, run there:\nexport ")
	assert.Contains(t, output.String(), "export MILLRACE_KAFKA_BROKERS='127.0.0.1:")
	for _, service := range []string{"postgres", "pubsub", "kafka"} {
		assert.Regexp(t, `millrace: `+service+`: .+ \((real|a fake)\), ready in \d+\.\d s at 127.0.0.1:\d+\n`, output.String())
	}
}

// A signal reaches the command, whose answer to it counts.
func TestDevForwardsSignals(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		command, output := millrace(t, "dev", "--services=pubsub", "--",
			"sh", "-c", `trap 'echo told; exit 9' INT TERM; echo "up"; while :; do sleep 0.02; done`)
		require.NoError(t, command.Start())
		output.await(t, "\nup\n")
		require.NoError(t, command.Process.Signal(signal))
		assert.Error(t, command.Wait())
		assert.Equal(t, 9, command.ProcessState.ExitCode(), output)
		assert.Contains(t, output.String(), "told")
	}
}

// A command may end without its program, as "go run" does on SIGTERM, or wait for it without telling it, as "go run" does on
// SIGINT. The program learns of the signal, and has ended before the services stop.
func TestDevEndsWhatItsCommandStarted(t *testing.T) {
	for _, test := range []struct {
		signal  syscall.Signal
		command string
		code    int
	}{
		{syscall.SIGTERM, `sh -c "$PROGRAM"; exit 5`, 128 + 15},
		{syscall.SIGHUP, `sh -c "$PROGRAM"; exit 5`, 128 + 1},
		{syscall.SIGINT, `trap : INT; sh -c "$PROGRAM"; exit 5`, 5},
	} {
		command, output := millrace(t, "dev", "--services=pubsub", "--", "sh", "-c", test.command)
		command.Env = append(command.Env, `PROGRAM=trap 'sleep 0.3; echo "told"; exit' INT TERM; echo "up $$"; while :; do sleep 0.02; done`)
		require.NoError(t, command.Start())
		output.await(t, "\nup ")
		require.NoError(t, command.Process.Signal(test.signal))
		assert.Error(t, command.Wait())
		assert.Equal(t, test.code, command.ProcessState.ExitCode(), output)
		assert.Contains(t, output.String(), "\ntold\n")
	}
}

func TestDevRunsUntilInterrupted(t *testing.T) {
	command, output := millrace(t, "dev", "--services=pubsub")
	require.NoError(t, command.Start())
	output.await(t, "press Ctrl-C to stop the services")
	require.NoError(t, command.Process.Signal(syscall.SIGINT))
	assert.NoError(t, command.Wait(), output)
}

// A start that fails tells why.
func TestDevFails(t *testing.T) {
	command, output := millrace(t, "dev", "--services=kafka", "--", "true")
	command.Env = append(command.Env, "MILLRACE_KAFKA_HOME=/does/not/exist")
	assert.Error(t, command.Run())
	assert.Equal(t, cli.ExitFailed, command.ProcessState.ExitCode())
	assert.Contains(t, output.String(), "scripts/kafka fills it")
}
