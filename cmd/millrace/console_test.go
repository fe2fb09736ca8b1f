package main

import (
	"io"
	"net/http"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
)

// The command serves pages until it is asked to end, also while a browser keeps one up to date.
func TestConsoleCommand(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	assert.Contains(t, o.run(cli.ExitUsage, "console", "--address", "0.0.0.0:0"), `--address is "0.0.0.0:0": want the host 127.0.0.1`)
	assert.Contains(t, o.run(cli.ExitUsage, "console", "--act", "--actor", ""), "--actor is empty")
	command, output := millrace(t, "console", "--address", "127.0.0.1:0", "--schema", o.schema, "--dsn", o.dsn)
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill() }) // where the test has failed
	at := regexp.MustCompile(`The console is at (http://127\.0\.0\.1:\d+/)`)
	require.Eventually(t, func() bool { return at.MatchString(output.String()) }, time.Minute, 20*time.Millisecond, output)
	address := at.FindStringSubmatch(output.String())[1]
	first, err := http.Get(address)
	require.NoError(t, err)
	defer first.Body.Close()
	page, err := io.ReadAll(first.Body)
	require.NoError(t, err)
	assert.Contains(t, string(page), "No consumer has claimed an event.")
	assert.Contains(t, string(page), "may look, payloads hidden")
	open, err := http.Get(first.Request.URL.String() + "live")
	require.NoError(t, err)
	defer open.Body.Close()
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	_, err = io.ReadAll(open.Body)
	assert.NoError(t, err, "the stream ends as it should")
	require.NoError(t, command.Wait(), output)
}
