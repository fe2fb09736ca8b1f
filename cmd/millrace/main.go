// Command millrace is the operator's command.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/cmd/millrace/internal/dead"
	"github.com/millrace-go/millrace/cmd/millrace/internal/dev"
	"github.com/millrace-go/millrace/cmd/millrace/internal/outbox"
	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
)

const rootUsage = `Shows where events are between PostgreSQL and the broker, and repairs what went wrong.

Output: a table for people, or JSON for scripts with -o json. Errors go to standard error; with -o json they are
{"command": …, "error": …}. Only terminals get colours, and none get any if NO_COLOR is set. Terminals get short IDs, such
as 0198c0de…3f2a; pipes get whole IDs and whole errors. Commands accept the short ID of an event that is pending or failed.
"explain" also accepts that of a completed one.

The database is named by --dsn and --schema, by a service's configuration (--config FILE), or by the environment:
$MILLRACE_POSTGRES_DSN and $MILLRACE_POSTGRES_SCHEMA, $DATABASE_URL, $PGHOST and the like. Flags override the variables
MILLRACE_*, these override the configuration, and it overrides the other variables.

Exit codes:
  0  success; "doctor" and "outbox check" found no problems
  1  failure; or "doctor" or "outbox check" found problems, "config check" found
     errors, "explain" found nothing
  2  the command line is wrong; for "doctor" also: it cannot reach the database
"dev" exits with the code of the command that it runs: 127 if it cannot be run, 128 + N if signal N ended it.`

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin *os.File, stdout, stderr io.Writer) int {
	a := cli.New(stdin, stdout, stderr)
	return execute(a, args)
}

func execute(a *cli.App, args []string) int {
	stdout, stderr := a.Stdout, a.Stderr
	root := rootCommand(a)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		rest := args
		for _, word := range strings.Fields(c.CommandPath())[1:] {
			rest = rest[slices.Index(rest, word)+1:]
		}
		if c.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") { // a wrong subcommand, whose flags are unknown
			return fmt.Errorf("unknown command %q for %q", rest[0], c.CommandPath())
		}
		for _, arg := range rest { // flags with one dash, as package flag accepts them
			name, dash := strings.CutPrefix(arg, "-")
			name, _, _ = strings.Cut(name, "=")
			if dash && len(name) > 1 && c.Flags().Lookup(name) != nil {
				return fmt.Errorf("unknown flag: %s; want --%s", arg, name)
			}
		}
		return err
	})
	if len(args) == 0 {
		fmt.Fprint(stderr, root.UsageString())
		return cli.ExitUsage
	}
	command, err := root.ExecuteC()
	var status cli.ExitStatus
	switch {
	case err == nil:
		return cli.ExitOK
	case errors.As(err, &status):
		return int(status)
	}
	a.JSON = a.JSON || !a.Began && wantsJSON(args)
	misused := !a.Began || cli.IsMisuse(err) // cobra's own errors are about the command line
	switch {
	case a.JSON:
		_ = json.NewEncoder(stderr).Encode(map[string]string{"command": command.CommandPath(), "error": err.Error()}) // if it fails, nobody reads it
	default:
		fmt.Fprintf(stderr, "%s %s\n", a.ErrTerminal.Red(command.CommandPath()+":"), output.Lines(err.Error()))
		if misused {
			fmt.Fprintf(stderr, "Run \"%s -h\" for usage.\n", command.CommandPath())
		}
	}
	if misused || command.Name() == "doctor" { // 1 would mean that doctor found problems
		return cli.ExitUsage
	}
	return cli.ExitFailed
}

// wantsJSON checks a wrong command line for JSON output, because parsing may have stopped before the flag.
func wantsJSON(args []string) bool {
	for i, arg := range args {
		switch arg {
		case "--":
			return false
		case "--json", "-ojson", "-o=json", "--output=json":
			return true
		case "-o", "--output":
			if i+1 < len(args) && args[i+1] == "json" {
				return true
			}
		}
	}
	return false
}

func rootCommand(a *cli.App) *cobra.Command {
	root := &cobra.Command{
		Use:               "millrace",
		Short:             "The operator's command",
		Long:              rootUsage,
		Example:           "  millrace dev -- go run .          # a service, with PostgreSQL and brokers\n  millrace doctor                   # what is wrong, and what to do about it\n  millrace explain 0198c0de…3f2a    # where an event is, and why",
		Version:           thisVersion(),
		Args:              cobra.NoArgs,
		RunE:              cli.NeedsCommand,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { a.Began = true; return a.Resolve(c) },
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetHelpCommand(helpCommand())
	root.AddCommand(
		dev.Command(a), versionCommand(a), migrateCommand(a), migrationCommand(a), outbox.Command(a), effectCommand(a), keysCommand(a), scheduleCommand(a), catalogCommand(a), retentionCommand(a), dead.Command(a), consumerCommand(a), relayCommand(a), configCommand(a), explainCommand(a), doctorCommand(a), consoleCommand(a),
	)
	usage := strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", helpWidth))
	root.SetUsageTemplate(strings.ReplaceAll(usage, "for more information about a command", "for more about a command"))
	fold(root)
	return root
}

// helpWidth is the width of help, in characters.
const helpWidth = 80

// fold wraps the help of a command and of its subcommands.
func fold(c *cobra.Command) {
	c.Long = output.Fold(c.Long, helpWidth)
	for _, sub := range c.Commands() {
		fold(sub)
	}
}

// helpCommand is cobra's help, but it fails for a command that does not exist.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Help about any command", Example: "  millrace help dead replay",
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			if of, _, err := c.Root().Find(args); err == nil {
				for _, sub := range of.Commands() {
					names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			of, rest, err := c.Root().Find(args)
			if err == nil && len(rest) > 0 {
				err = fmt.Errorf("unknown command %q for %q", rest[0], of.CommandPath())
			}
			if err != nil {
				return cli.Misuse(err)
			}
			of.InitDefaultHelpFlag()
			of.InitDefaultVersionFlag()
			return of.Help()
		},
	}
}
