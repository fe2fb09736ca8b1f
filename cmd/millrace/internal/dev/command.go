package dev

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
)

// The exit codes of a shell: for a command that could not be run, and the base for one that a signal killed.
const (
	exitNotRun   = 127
	exitBySignal = 128
)

// runCommand runs the command with our environment and env, passes signals on to it, and returns its exit code. SIGINT is sent to all
// processes of the command, as a terminal's Ctrl-C is. Any other signal is sent to the command, and after that has ended, to those of its
// processes that still run: "go run", for example, ends without its program.
func runCommand(argv, env []string, signals <-chan os.Signal, stdin *os.File, stdout, stderr io.Writer) int {
	command := exec.Command(argv[0], argv[1:]...) //nolint:noctx // signals ask it to end
	// No load balancer sends requests here. A value in our environment overrides it.
	command.Env = slices.Concat([]string{"MILLRACE_HTTP_LINGER=0s"}, os.Environ(), env)
	command.Stdin, command.Stdout, command.Stderr = stdin, stdout, stderr
	if err := command.Start(); err != nil {
		fmt.Fprintf(stderr, "millrace dev: run %s: %v\n", argv[0], err)
		return exitNotRun
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	var below []process // at the last signal
	interrupted := false
	for {
		select {
		case received := <-signals:
			// A terminal's Ctrl-C reaches the command too. Many programs take a second one as "at once".
			if received == syscall.SIGINT && hasTerminal() {
				continue
			}
			below = processesBelow(command.Process.Pid)
			_ = command.Process.Signal(received) // it fails only if the command has just ended
			if received == syscall.SIGINT {
				signalAll(below, received)
			}
			interrupted = received == syscall.SIGINT
		case err := <-ended:
			if below = stillRunning(below); !interrupted {
				signalAll(below, syscall.SIGTERM)
			}
			awaitEnd(below, signals)
			return exitCode(err, stderr)
		}
	}
}

func exitCode(err error, stderr io.Writer) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return cli.ExitOK
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return exitBySignal + int(status.Signal())
		}
		return exit.ExitCode()
	}
	fmt.Fprintf(stderr, "millrace dev: wait for the command: %v\n", err)
	return cli.ExitFailed
}

// hasTerminal reports whether this process belongs to a terminal.
func hasTerminal() bool {
	terminal, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	terminal.Close()
	return true
}
