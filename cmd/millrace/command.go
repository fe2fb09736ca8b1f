package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// Exit codes of a shell for a command that could not be run, and the base for one that a signal killed.
const (
	exitNotRun   = 127
	exitBySignal = 128
)

// runCommand runs the command with the environment on top of ours, passes signals on to it and returns its exit code.
func runCommand(argv, env []string, signals <-chan os.Signal, stdin *os.File, stdout, stderr io.Writer) int {
	command := exec.Command(argv[0], argv[1:]...) //nolint:noctx // it is asked to end by signals
	command.Env = append(os.Environ(), env...)
	command.Stdin, command.Stdout, command.Stderr = stdin, stdout, stderr
	if err := command.Start(); err != nil {
		fmt.Fprintf(stderr, "millrace dev: run %s: %v\n", argv[0], err)
		return exitNotRun
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	for {
		select {
		case received := <-signals:
			// A terminal's Ctrl-C reaches the command as well as us; twice would mean "at once" to many programs.
			if received == syscall.SIGINT && hasTerminal() {
				continue
			}
			_ = command.Process.Signal(received) // it fails only when the command has just ended
		case err := <-ended:
			return exitCode(err, stderr)
		}
	}
}

func exitCode(err error, stderr io.Writer) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return exitBySignal + int(status.Signal())
		}
		return exit.ExitCode()
	}
	fmt.Fprintf(stderr, "millrace dev: wait for the command: %v\n", err)
	return exitFailed
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
