// Package dev implements the command "dev": services on this machine, and a program that uses them.
package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/internal/reach"
)

// Command returns "dev".
func Command(a *cli.App) *cobra.Command {
	list := "postgres,pubsub,kafka"
	c := &cobra.Command{
		Use: "dev [-- COMMAND ARGUMENTS…]", Short: "Run PostgreSQL and brokers on this machine, for development",
		Long: "Starts services on this machine, for development, and says where each one comes from: an address in the environment,\n" +
			"what is installed, a download, or a fake.\n\n" +
			"With a COMMAND it runs that with the addresses of the services in its environment. When the COMMAND ends, it stops the\n" +
			"services and exits with the COMMAND's exit code. Without one it prints the environment and runs until Ctrl-C.\n\n" +
			"A Ctrl-C in a terminal reaches the COMMAND and its children. A SIGTERM that is sent to millrace alone reaches them too: those\n" +
			"that the COMMAND leaves, as \"go run\" leaves its program, get SIGTERM, and the services stop after them.",
		Example: "  millrace dev                                 # until Ctrl-C; prints the environment\n  millrace dev -- go run .\n  millrace dev --services postgres,redis -- go test ./...",
	}
	c.Flags().StringVar(&list, "services", list, "services to start, separated by commas: postgres, pubsub, kafka, kafka3 (three brokers), redis")
	c.Flags().SetInterspersed(false) // arguments after COMMAND belong to it
	c.RunE = func(_ *cobra.Command, args []string) error {
		services, err := devstack.ParseServices(list)
		if err == nil && len(services) == 0 {
			err = errors.New("want at least one service")
		}
		if err != nil {
			return cli.Misuse(fmt.Errorf("--services: %w", err))
		}
		if code := dev(services, args, a.Stdin, a.Stdout, a.Stderr); code != cli.ExitOK {
			return cli.ExitStatus(code)
		}
		return nil
	}
	return c
}

// dev runs a stack until the command ends or, without a command, until a signal.
func dev(services []devstack.Service, argv []string, stdin *os.File, stdout, stderr io.Writer) int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	var printing sync.Mutex
	stack := &devstack.Stack{Ready: func(info devstack.Info) {
		printing.Lock()
		defer printing.Unlock()
		fmt.Fprintf(stderr, "millrace: %s, ready in %.1f s at %s\n", info, info.Took.Seconds(), info.Address)
	}}
	code := func() int {
		if err := startStack(stack, services, signals); err != nil {
			fmt.Fprintf(stderr, "millrace dev: %v\n", err)
			return cli.ExitFailed
		}
		if len(argv) == 0 {
			printEnvironment(stdout, stack.Env())
			fmt.Fprintln(stderr, "millrace: press Ctrl-C to stop the services")
			<-signals
			return cli.ExitOK
		}
		fmt.Fprintln(stderr, "millrace: to use these services in another terminal, run there:")
		printEnvironment(stderr, stack.Env())
		fmt.Fprintf(stderr, "millrace: the services stop when %s ends\n", filepath.Base(argv[0]))
		return runCommand(argv, stack.Env(), signals, stdin, stdout, stderr)
	}()
	if err := stack.Stop(); err != nil {
		fmt.Fprintf(stderr, "millrace dev: %v\n", err)
		return max(code, cli.ExitFailed)
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

// printEnvironment prints lines for a POSIX shell. It does not show a password that this process was given.
func printEnvironment(to io.Writer, env []string) {
	for _, line := range env {
		key, value, _ := strings.Cut(line, "=")
		note := ""
		if shown := reach.WithoutPassword(value); value == os.Getenv(key) && shown != value {
			value, note = shown, " # put the password in place of xxxxx"
		}
		fmt.Fprintf(to, "export %s='%s'%s\n", key, strings.ReplaceAll(value, "'", `'\''`), note)
	}
}
