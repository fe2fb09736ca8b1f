// Command millrace is the operator's command.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

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
	fmt.Fprintf(stderr, "%s: %v\n", command.CommandPath(), err)
	if !a.began || errors.As(err, &usage) { // what cobra itself says is about the command line
		fmt.Fprintf(stderr, "%q tells how it is used.\n", command.CommandPath()+" -h")
		return exitUsage
	}
	return exitFailed
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:               "millrace",
		Short:             "The operator's command",
		Args:              cobra.NoArgs,
		RunE:              needsCommand,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(*cobra.Command, []string) error { a.began = true; return nil },
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
		a.migrate(), a.outbox(), a.effect(), a.retention(), a.dead(), a.relay(),
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
