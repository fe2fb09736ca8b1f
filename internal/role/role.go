// Package role runs parts of a program as separate processes, which can be killed. They run the same executable, and an environment
// variable says which part to run. None outlives the process that started it, however that ends.
package role

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

const (
	nameVariable   = "MILLRACE_ROLE"
	configVariable = "MILLRACE_ROLE_CONFIG"

	exitTrouble = 2
)

// Stop is the line that makes a process stop.
const Stop = "stop"

// Name returns the role that this process was started for, or "" in the main process.
func Name() string { return os.Getenv(nameVariable) }

// Play is the main function of a process that was started for a role: it reads the configuration, calls play, and returns the exit
// status. The context ends when the process receives Stop; told delivers the other lines. The process ends at once if its parent does. It
// ignores Ctrl-C, which the parent handles.
func Play[C any](play func(ctx context.Context, config C, told <-chan string) error) int {
	signal.Ignore(os.Interrupt, syscall.SIGPIPE)
	var config C
	if err := json.Unmarshal([]byte(os.Getenv(configVariable)), &config); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", configVariable, err)
		return exitTrouble
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	told := make(chan string, 16)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			if lines.Text() == Stop {
				cancel()
			} else {
				told <- lines.Text()
			}
		}
		os.Exit(exitTrouble)
	}()
	if err := play(ctx, config, told); err != nil && !errors.Is(err, ctx.Err()) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", Name(), err)
		return exitTrouble
	}
	return 0
}

// Process is a started process. All methods may be called concurrently.
type Process struct {
	cmd   *exec.Cmd
	stdin *os.File
	ended chan struct{}
	err   error // the result of its end, valid once ended is closed
}

// Start runs this program again in a role, with its output to stdout and stderr. The caller must call Stop or Kill.
func Start(name string, config any, stdout, stderr io.Writer) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	p := &Process{cmd: exec.Command(self), stdin: write, ended: make(chan struct{})} //nolint:noctx // it ends with its input
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = read, stdout, stderr
	p.cmd.Env = append(os.Environ(), nameVariable+"="+name, configVariable+"="+string(text))
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, write.Close())
	}
	go func() { // Stop and Kill wait for it
		defer close(p.ended)
		p.err = p.cmd.Wait()
		_ = write.Close()
	}()
	return p, nil
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended returns a channel that is closed when the process has ended. Err is its result from then on, nil for exit status 0.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Err returns nil until Ended is closed.
func (p *Process) Err() error {
	select {
	case <-p.ended:
		return p.err
	default:
		return nil
	}
}

// Tell sends a line to the process. It ignores errors, because the process may have ended.
func (p *Process) Tell(line string) { _, _ = p.stdin.WriteString(line + "\n") }

// Kill sends SIGKILL and waits for the end. It returns false if the process had ended before.
func (p *Process) Kill() bool {
	select {
	case <-p.ended:
		return false
	default:
	}
	killed := p.cmd.Process.Kill() == nil
	<-p.ended
	return killed
}

// Stop tells the process to stop and waits until it ends. After patience it kills the process. It returns an error unless the process
// ended well.
func (p *Process) Stop(patience time.Duration) error {
	p.Tell(Stop)
	select {
	case <-p.ended:
		return p.err
	case <-time.After(patience):
		p.Kill()
		return fmt.Errorf("process %d did not stop within %v and was killed", p.PID(), patience)
	}
}
