// Package role runs the parts of a program as processes of their own, which can be killed: the same executable, told by
// its environment which part to play. None outlives the process that started it, however that ends.
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

// Stop is the line that tells a process to stop.
const Stop = "stop"

// Name is the role that this process was started for; "" in the main process.
func Name() string { return os.Getenv(nameVariable) }

// Play is the main function of a process that was started for a role: it reads the configuration, plays, and returns the
// exit status. The context ends when the process is told to stop; told has what else it is told. The process ends at once
// when the one that started it does. Ctrl-C is that one's to answer.
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

// Process is a started part. All methods may be called concurrently.
type Process struct {
	cmd   *exec.Cmd
	stdin *os.File
	ended chan struct{}
	err   error // of its end, once ended is closed
}

// Start runs this program again in a role, with its output to stdout and stderr. The caller ends it by Stop or Kill.
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

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended is closed when the process is gone, by itself or by us. Err is its end from then on, nil for exit status 0.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Err is nil until Ended is closed.
func (p *Process) Err() error {
	select {
	case <-p.ended:
		return p.err
	default:
		return nil
	}
}

// Tell sends a line to the process, which may be gone.
func (p *Process) Tell(line string) { _, _ = p.stdin.WriteString(line + "\n") }

// Kill sends SIGKILL and waits for the end. It reports false when the process had ended before.
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

// Stop tells the process to stop and waits for its end, which should be a good one within so long; then it is killed.
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
