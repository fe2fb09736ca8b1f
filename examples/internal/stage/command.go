package stage

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/millrace-go/millrace/internal/role"
)

// Exit statuses of an example.
const (
	OK      = 0
	Verdict = 1 // something was lost or doubled
	Trouble = 2 // it could not run
)

// ErrVerdict is returned by Play if the verdict is bad.
var ErrVerdict = errors.New("the verdict is bad")

// LeftError means that something could not be removed.
type LeftError struct{ error }

func (e LeftError) Unwrap() error { return e.error }

// Left returns the error of tearing something down, or nil.
func Left(errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return LeftError{err}
	}
	return nil
}

// Command is an example.
type Command struct {
	Name string
	// Role runs a process of the example, which is this program again, and returns its exit status. It is nil if there are none.
	Role func() int
	// Play runs the example. Errors of parsing the arguments come from the flag set (see Flags).
	Play func(ctx context.Context, args []string, stdout, stderr io.Writer) error
}

// Main runs the example, or a process of it.
func (c Command) Main() {
	if role.Name() != "" {
		os.Exit(c.Role())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	code := c.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Run runs the example and returns the exit status.
func (c Command) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := c.Play(ctx, args, stdout, stderr)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return OK
	case errors.As(err, new(LeftError)): // whatever else was wrong
		fmt.Fprintf(stderr, "\n%s: something that was started may be left: %v\n", c.Name, err)
	case errors.Is(err, ErrVerdict):
		return Verdict
	case ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))):
		fmt.Fprintln(stderr, "\nstopped; everything that was started is gone")
	default:
		fmt.Fprintf(stderr, "\n%s: %v\n", c.Name, err)
	}
	return Trouble
}

// Common are the flags that the examples share.
type Common struct {
	Kills   int
	Broker  string
	Verbose bool
	set     *flag.FlagSet
}

// Flags returns a flag set with the common flags.
func (c *Common) Flags(name string, kills int, stderr io.Writer) *flag.FlagSet {
	c.set = flag.NewFlagSet(name, flag.ContinueOnError)
	c.set.SetOutput(stderr)
	c.set.IntVar(&c.Kills, "kills", kills, "processes to kill with SIGKILL; each is started again")
	c.set.BoolVar(&c.Verbose, "v", false, "show the processes' logs")
	return c.set
}

// Logs returns the writer for the processes' logs.
func (c *Common) Logs(stderr io.Writer) io.Writer {
	if c.Verbose {
		return stderr
	}
	return io.Discard
}

// Check returns the errors of the common flags, after parsing, joined with errs.
func (c *Common) Check(errs ...error) error {
	if c.set.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q: this command takes flags only", c.set.Arg(0)))
	}
	given := false
	c.set.Visit(func(f *flag.Flag) { given = given || f.Name == "kills" })
	if c.Broker == "memory" && !given {
		c.Kills = 0
	}
	errs = append(errs, Wrong(c.Kills < 0 || c.Kills > 1000, "-kills is %d: want 0 to 1000", c.Kills))
	switch c.Broker {
	case "pubsub", "kafka":
	case "memory":
		errs = append(errs, Wrong(c.Kills > 0, "-kills is %d: with -broker memory everything runs in one process, so nothing can be killed; leave -kills out or use -broker pubsub or kafka", c.Kills))
	default:
		errs = append(errs, fmt.Errorf("-broker is %q: want pubsub, kafka or memory", c.Broker))
	}
	return errors.Join(errs...)
}

// Wrong returns the error if wrong is true.
func Wrong(wrong bool, format string, args ...any) error {
	if !wrong {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// Table prints lines of a name and a text.
type Table struct{ Out io.Writer }

// Line prints a line.
func (t Table) Line(name, format string, args ...any) {
	fmt.Fprintf(t.Out, "%-22s %s\n", name, fmt.Sprintf(format, args...))
}

// Kills prints how many processes were killed, by role.
func (t Table) Kills(kills map[string]int, roles ...string) {
	all, each := 0, make([]string, 0, len(roles))
	for _, r := range roles {
		all += kills[r]
		each = append(each, fmt.Sprintf("%s %d", r, kills[r]))
	}
	t.Line("kills", "%d (%s)", all, strings.Join(each, ", "))
}
