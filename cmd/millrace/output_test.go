package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
)

func says(t *testing.T, code int, args ...string) string {
	var output bytes.Buffer
	require.Equal(t, code, run(args, os.Stdin, &output, &output), "%v: %s", args, &output)
	return output.String()
}

func TestOutput(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	long := o.run(cli.ExitOK, "outbox", "status", "-o", "json")
	assert.True(t, json.Valid([]byte(long)), long)
	assert.True(t, json.Valid([]byte(o.run(cli.ExitOK, "outbox", "purge", "--older-than", "1h", "--json"))))
	assert.Contains(t, o.run(cli.ExitOK, "outbox", "status", "-o", "table"), "pending  none\nfailed   none\n")
	assert.Contains(t, o.run(cli.ExitUsage, "outbox", "status", "-o", "xml"), "want table or json")
}

// Errors are JSON wherever the flag for it stands: what is wrong before it ends the parsing.
func TestErrorsAsJSON(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"-o json", "-ojson", "-o=json", "--output json", "--output=json", "--json"} {
		for _, wrong := range []string{"doctor --max-lag soon", "explain --bogus e1", "docter"} {
			var told struct{ Command, Error string }
			said := says(t, cli.ExitUsage, strings.Fields(wrong+" "+format)...)
			require.NoError(t, json.Unmarshal([]byte(said), &told), said)
			assert.NotEmpty(t, told.Error)
		}
	}
	assert.Contains(t, says(t, cli.ExitUsage, "explain", "--bogus", "--", "-o", "json"), "Run \"millrace explain -h\" for usage.\n", "these are no flags")
	assert.Contains(t, says(t, cli.ExitUsage, "explain", "--bogus", "-o"), "Run \"millrace explain -h\" for usage.\n")
}

// What prints nothing but lines of its own for people, a file for psql, or the output of another command; or serves pages.
var printsNoJSON = map[string]bool{"millrace dev": true, "millrace version": true, "millrace migrate print": true, "millrace migrate grants": true, "millrace dead edit": true, "millrace console": true}

func TestEveryCommandPrintsJSON(t *testing.T) {
	t.Parallel()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.HasSubCommands() || printsNoJSON[c.CommandPath()] {
			return
		}
		assert.NotNil(t, c.Flags().ShorthandLookup("o"), c.CommandPath())
		assert.NotNil(t, c.Flags().Lookup("json"), c.CommandPath())
	}
	walk(rootCommand(&cli.App{}))
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		assert.Contains(t, says(t, cli.ExitOK, "completion", shell), "__complete", shell)
	}
	assert.Regexp(t, `(?m)^outbox\t`, says(t, cli.ExitOK, "__complete", "ou"))
	assert.Contains(t, says(t, cli.ExitOK, "__complete", "outbox", "status", "-o", ""), "table\njson\n:4")
	assert.Contains(t, says(t, cli.ExitOK, "__complete", "dead", "list", "--state", "b"), "blocked\n")
	assert.Contains(t, says(t, cli.ExitOK, "__complete", "relay", "--broker", ""), "pubsub\nkafka\n")
}

func TestExitCodesAreDocumented(t *testing.T) {
	t.Parallel()
	assert.Contains(t, says(t, cli.ExitOK, "--help"), "Exit codes:\n  0  success;")
}
