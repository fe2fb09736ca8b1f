package cli

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/internal/words"
)

// Exit codes. The command "dev" also returns that of the program it runs.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// ExitStatus is an error that sets the exit code without a message, because the command has printed everything.
type ExitStatus int

func (e ExitStatus) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError is an error in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Misuse marks an error as one in the command line.
func Misuse(err error) error { return usageError{err} }

// IsMisuse reports whether the error is about the command line.
func IsMisuse(err error) bool {
	var usage usageError
	return errors.As(err, &usage)
}

// NeedsCommand is the function of a command that only groups others. It returns an error that lists them.
func NeedsCommand(c *cobra.Command, _ []string) error {
	var names []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return Misuse(fmt.Errorf("the command is missing: want %s", words.Either(names)))
}

// Argument checks a command's only argument. The second word of its usage names it, in brackets if it is optional.
func Argument(c *cobra.Command, args []string) error {
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

// UntilSignal returns a context that ends with SIGINT or SIGTERM. A second signal ends the process.
func UntilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
