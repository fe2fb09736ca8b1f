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

// Exit codes besides those of a command that "dev" runs.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// ExitStatus ends the command with a code and no message: the command has printed all there is to say.
type ExitStatus int

func (e ExitStatus) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError is a wrong command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Misuse makes an error one about the command line.
func Misuse(err error) error { return usageError{err} }

// IsMisuse reports whether the error is about the command line.
func IsMisuse(err error) bool {
	var usage usageError
	return errors.As(err, &usage)
}

// NeedsCommand is for a command that only groups others.
func NeedsCommand(c *cobra.Command, _ []string) error {
	var names []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return Misuse(fmt.Errorf("the command is missing: want %s", words.Either(names)))
}

// Argument is for a command that takes one, named by the second word of its usage; in brackets if it may be left out.
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

// UntilSignal is a context that ends with SIGINT or SIGTERM; a second one ends the process.
func UntilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
