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
)

const rootUsage = `The operator's command of Millrace: what becomes of events between PostgreSQL and the broker, and what to do about it.

Commands that print take -o table, for people, or -o json, for scripts. What goes wrong is told on standard error, with -o json
as {"command": …, "error": …}.

Commands for a database find it by --dsn and --schema, by --config FILE, which is a service's configuration, or by
$MILLRACE_POSTGRES_DSN and $MILLRACE_POSTGRES_SCHEMA, $DATABASE_URL, PGHOST and its like.

Exit codes:
  0  it is done; "doctor" has found nothing, "explain" has found the event
  1  it is not done, or what was looked at is wrong: "doctor" has findings, "outbox check" has, "explain" knows no such event
  2  the command line cannot be meant; for "doctor" also that it could not look: no connection to the database
"dev" ends with the exit code of the command that it runs; 127 when that cannot be run, 128 and more by a signal.`

// Exit codes besides those of a command that "dev" runs.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// exitStatus ends the command with a code and without a word: what there is to say was said.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError is a command line that cannot be meant.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func run(args []string, stdin *os.File, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
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
		return err
	})
	if len(args) == 0 {
		fmt.Fprintf(stderr, "usage: millrace <command> [flags]\n\n%s", root.UsageString())
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
	case misused:
		fmt.Fprintf(stderr, "%s: %s\n%q tells how it is used.\n", command.CommandPath(), lines(err.Error()), command.CommandPath()+" -h")
	default:
		fmt.Fprintf(stderr, "%s: %s\n", command.CommandPath(), lines(err.Error()))
	}
	if misused || command.Name() == "doctor" { // which has not looked, and 1 would mean that it has found something
		return exitUsage
	}
	return exitFailed
}

// wantsJSON is for a command line that was not understood, perhaps before the flag that says how to print.
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
		Args:              cobra.NoArgs,
		RunE:              needsCommand,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { a.began = true; return a.resolve(c) },
	}
	root.AddCommand(
		&cobra.Command{
			Use: "dev", Short: "Run PostgreSQL, Pub/Sub and Kafka on this machine, for a command or until Ctrl-C", Long: devUsage,
			DisableFlagParsing: true, // its flags are Go's, with one dash
			RunE: func(_ *cobra.Command, args []string) error {
				if code := dev(args, a.stdin, a.stdout, a.stderr); code != exitOK {
					return exitStatus(code)
				}
				return nil
			},
		},
		a.migrate(), a.outbox(), a.effect(), a.retention(), a.dead(), a.relay(), a.config(), a.explain(), a.doctor(),
	)
	return root
}

// needsCommand is for a command that only groups others.
func needsCommand(c *cobra.Command, _ []string) error {
	fmt.Fprintln(c.ErrOrStderr(), c.UsageString())
	return usageError{errors.New("no command is named")}
}

// untilSignal is a context that ends with SIGINT or SIGTERM; a second one ends the process.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
