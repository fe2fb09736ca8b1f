// Command millrace is the operator's command.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/internal/words"
)

const rootUsage = `Shows where events are between PostgreSQL and the broker, and repairs what went wrong.

Output: a table for people, or JSON for scripts with -o json. Errors go to standard error; with -o json they are
{"command": …, "error": …}. Colours are used on terminals alone, and not at all if NO_COLOR is set. Pipes get whole IDs
and whole errors; on a terminal IDs are shortened, as in 0198c0de…3f2a, and commands
accept the short form of an event that is pending or failed;
"explain" also that of one that is completed.

The database is named by --dsn and --schema, or by --config FILE, a service's configuration, or by the environment:
$MILLRACE_POSTGRES_DSN and $MILLRACE_POSTGRES_SCHEMA, $DATABASE_URL, $PGHOST and the like. Flags win over the
configuration, and that wins over the environment.

Exit codes:
  0  success; "doctor" and "outbox check" found no problems
  1  failure; or "doctor" or "outbox check" found problems, "config check" found
     errors, "explain" found nothing
  2  the command line is wrong; for "doctor" also: it cannot reach the database
"dev" exits with the code of the command that it runs: 127 if it cannot be run, 128 + N if signal N ended it.`

// Exit codes besides those of a command that "dev" runs.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// exitStatus ends the command with a code and no message: the command has printed all there is to say.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError is a wrong command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func run(args []string, stdin *os.File, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, terminal: output.Of(stdout), errTerminal: output.Of(stderr)}
	return a.run(args)
}

func (a *app) run(args []string) int {
	stdout, stderr := a.stdout, a.stderr
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		rest := args
		for _, word := range strings.Fields(c.CommandPath())[1:] {
			rest = rest[slices.Index(rest, word)+1:]
		}
		if c.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") { // whose flags nobody knows
			return fmt.Errorf("unknown command %q for %q", rest[0], c.CommandPath())
		}
		for _, arg := range rest { // with one dash, as Go's flags have
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
		return exitUsage
	}
	command, err := root.ExecuteC()
	var (
		status exitStatus
		usage  usageError
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		return int(status)
	}
	a.json = a.json || !a.began && wantsJSON(args)
	misused := !a.began || errors.As(err, &usage) // what cobra itself says is about the command line
	switch {
	case a.json:
		_ = json.NewEncoder(stderr).Encode(map[string]string{"command": command.CommandPath(), "error": err.Error()}) // nobody reads, then
	default:
		fmt.Fprintf(stderr, "%s %s\n", a.errTerminal.Red(command.CommandPath()+":"), output.Lines(err.Error()))
		if misused {
			fmt.Fprintf(stderr, "Run \"%s -h\" for usage.\n", command.CommandPath())
		}
	}
	if misused || command.Name() == "doctor" { // 1 would mean that doctor found problems
		return exitUsage
	}
	return exitFailed
}

// wantsJSON is for a wrong command line: it may be wrong before the flag that chooses the output.
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

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:               "millrace",
		Short:             "The operator's command",
		Long:              rootUsage,
		Example:           "  millrace dev -- go run .          # a service, with PostgreSQL and brokers\n  millrace doctor                   # what is wrong, and what to do about it\n  millrace explain 0198c0de…3f2a    # where an event is, and why",
		Version:           thisVersion(),
		Args:              cobra.NoArgs,
		RunE:              needsCommand,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { a.began = true; return a.resolve(c) },
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetHelpCommand(helpCommand())
	root.AddCommand(
		a.dev(), a.version(), a.migrate(), a.migration(), a.outbox(), a.effect(), a.keys(), a.schedule(), a.catalog(), a.retention(), a.dead(), a.consumer(), a.relay(), a.config(), a.explain(), a.doctor(), a.console(),
	)
	usage := strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", helpWidth))
	root.SetUsageTemplate(strings.ReplaceAll(usage, "for more information about a command", "for more about a command"))
	fold(root)
	return root
}

// helpWidth is for how many characters help is written.
const helpWidth = 80

// fold fits the paragraphs of a command's help, and of those below it.
func fold(c *cobra.Command) {
	c.Long = output.Fold(c.Long, helpWidth)
	for _, sub := range c.Commands() {
		fold(sub)
	}
}

// needsCommand is for a command that only groups others.
func needsCommand(c *cobra.Command, _ []string) error {
	var names []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return usageError{fmt.Errorf("the command is missing: want %s", words.Either(names))}
}

// argument is for a command that takes one, named by the second word of its usage; in brackets if it may be left out.
func argument(c *cobra.Command, args []string) error {
	name := strings.Fields(c.Use)[1]
	example, _, _ := strings.Cut(strings.TrimSpace(c.Example), "\n")
	switch {
	case len(args) > 1:
		return fmt.Errorf("want one %s, not %d: %s", strings.Trim(name, "[]"), len(args), strings.Join(args, " "))
	case len(args) == 0 && !strings.HasPrefix(name, "["):
		return fmt.Errorf("%s is missing, for example: %s", name, example)
	}
	return nil
}

// helpCommand is cobra's, but for a command that does not exist it fails.
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
				return usageError{err}
			}
			of.InitDefaultHelpFlag()
			of.InitDefaultVersionFlag()
			return of.Help()
		},
	}
}

// untilSignal is a context that ends with SIGINT or SIGTERM; a second one ends the process.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
