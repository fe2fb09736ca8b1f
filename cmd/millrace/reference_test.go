package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
)

var update = flag.Bool("update", false, "write docs/reference/command.md")

const referenceHead = `# The command

<!-- Made from the commands themselves: go test ./cmd/millrace -run TestReferenceIsThatOfTheCommands -update -->

` + "Nothing is released yet. `go install ./cmd/millrace` in a clone of the repository installs the command in the folder\n`$(go env GOPATH)/bin`." + `
What to do with it in which situation is in [Operations](../operations.md).

`

// docs/reference/command.md has every command with its flags, as the command's own help has them.
func TestReferenceIsThatOfTheCommands(t *testing.T) {
	t.Parallel()
	a := &cli.App{Stdin: os.Stdin, Stdout: io.Discard, Stderr: io.Discard}
	var page strings.Builder
	page.WriteString(referenceHead)
	describeCommand(&page, rootCommand(a))
	got := strings.TrimSpace(page.String()) + "\n"
	const path = "../../docs/reference/command.md"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got, "%s is out of date: go test ./cmd/millrace -run %s -update writes it anew", path, t.Name())
}

// describeCommand writes what the help of a command says, and of those below it.
func describeCommand(page *strings.Builder, c *cobra.Command) {
	block := func(text string) { fmt.Fprintf(page, "```text\n%s\n```\n\n", strings.Trim(text, "\n")) }
	fmt.Fprintf(page, "## %s\n\n%s.\n\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."))
	if c.Runnable() && !c.HasSubCommands() {
		block(c.UseLine())
	}
	if c.Long != "" {
		block(c.Long)
	}
	if c.Example != "" {
		block(c.Example)
	}
	flags := c.NonInheritedFlags()
	flags.VisitAll(func(f *pflag.Flag) {
		if f.DefValue != "" && (f.DefValue == cli.Somebody() || f.DefValue == osUser()) {
			f.DefValue = "you" // whoever runs it
		}
	})
	if flags.HasAvailableFlags() {
		block(flags.FlagUsagesWrapped(helpWidth))
	}
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() {
			describeCommand(page, below)
		}
	}
}
