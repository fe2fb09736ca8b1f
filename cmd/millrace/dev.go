package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/millrace-go/millrace/framework/devstack"
)

const devUsage = `usage: millrace dev [-services postgres,pubsub,kafka,redis] [-- COMMAND ARGUMENTS...]

Starts services on this machine, for development: each from the first source that exists, and it says which. With a COMMAND
it runs that with the addresses of the services in its environment, stops the services afterwards, and exits with the
COMMAND's exit code. Without one it prints the environment and runs until Ctrl-C.

`

// dev starts a stack for a command, or until a signal.
func dev(args []string, stdin *os.File, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("dev", flag.ContinueOnError)
	flags.SetOutput(stderr)
	list := flags.String("services", "postgres,pubsub,kafka", "services to start, separated by commas; also: kafka3 (three brokers), redis")
	flags.Usage = func() {
		fmt.Fprint(stderr, devUsage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitOK
	} else if err != nil {
		return exitUsage
	}
	services, err := devstack.ParseServices(*list)
	if err == nil && len(services) == 0 {
		err = errors.New("want at least one service")
	}
	if err != nil {
		fmt.Fprintf(stderr, "millrace dev: -services: %v\n", err)
		return exitUsage
	}

	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	var printing sync.Mutex
	stack := &devstack.Stack{Ready: func(info devstack.Info) {
		printing.Lock()
		defer printing.Unlock()
		what := "a fake"
		if info.Real {
			what = "real"
		}
		fmt.Fprintf(stderr, "millrace: %-8s ready in %4.1f s at %s: %s (%s)\n", info.Service, info.Took.Seconds(), info.Address, info.Source, what)
	}}
	code := func() int {
		if err := startStack(stack, services, signals); err != nil {
			fmt.Fprintf(stderr, "millrace dev: %v\n", err)
			return exitFailed
		}
		if flags.NArg() == 0 {
			printEnvironment(stdout, stack.Env())
			fmt.Fprintln(stderr, "millrace: press Ctrl-C to stop the services")
			<-signals
			return exitOK
		}
		fmt.Fprintln(stderr, "millrace: another terminal finds these services after:")
		printEnvironment(stderr, stack.Env())
		return runCommand(flags.Args(), stack.Env(), signals, stdin, stdout, stderr)
	}()
	if err := stack.Stop(); err != nil {
		fmt.Fprintf(stderr, "millrace dev: %v\n", err)
		return max(code, exitFailed)
	}
	return code
}

// startStack starts the services, until a signal.
func startStack(stack *devstack.Stack, services []devstack.Service, signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() { ended <- stack.Add(ctx, services...) }()
	select {
	case err := <-ended:
		return err
	case received := <-signals:
		cancel(fmt.Errorf("%v", received))
		<-ended //nolint:errcheck // the signal is the reason
		return fmt.Errorf("%v while the services started", received)
	}
}

// printEnvironment writes lines for a POSIX shell.
func printEnvironment(to io.Writer, env []string) {
	for _, line := range env {
		key, value, _ := strings.Cut(line, "=")
		fmt.Fprintf(to, "export %s='%s'\n", key, strings.ReplaceAll(value, "'", `'\''`))
	}
}
