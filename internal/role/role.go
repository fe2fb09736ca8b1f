// Package role runs the parts of a program as processes of their own, which can be killed: the same executable, told by
// its environment which part to play. None outlives the process that started it, however that ends.
package role

import (
	"bufio"
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
)

// Name is the role that this process was started for; "" in the main process.
func Name() string { return os.Getenv(nameVariable) }

// Receive prepares a process that was started for a role: it reads config and returns the lines that it will be told. The
// process ends at once when the one that started it does. Ctrl-C is that one's to answer.
func Receive(config any) (<-chan string, error) {
	signal.Ignore(os.Interrupt, syscall.SIGPIPE)
	if err := json.Unmarshal([]byte(os.Getenv(configVariable)), config); err != nil {
		return nil, fmt.Errorf("%s: %w", configVariable, err)
	}
	told := make(chan string, 16)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			told <- lines.Text()
		}
		os.Exit(2)
	}()
	return told, nil
}

// Process is a started part. All methods may be called concurrently.
type Process struct {
	cmd   *exec.Cmd
	stdin *os.File
	ended chan struct{}
	err   error // of its end, once ended is closed
}

// Start runs this program again in a role. What it logs goes to logs. The caller ends it by Stop or Kill.
func Start(name string, config any, logs io.Writer) (*Process, error) {
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
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = read, logs, logs
	p.cmd.Env = append(os.Environ(), nameVariable+"="+name, configVariable+"="+string(text))
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, write.Close())
	}
	go func() { // Stop and Kill wait for it
		defer close(p.ended)
		p.err = p.cmd.Wait()
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
	_ = p.stdin.Close() // a second time by Stop
	return killed
}

// Stop tells the process "stop" and waits for its end, which should be a good one within so long; then it is killed.
func (p *Process) Stop(patience time.Duration) error {
	p.Tell("stop")
	select {
	case <-p.ended:
		_ = p.stdin.Close()
		return p.err
	case <-time.After(patience):
		p.Kill()
		return fmt.Errorf("process %d did not stop within %v and was killed", p.PID(), patience)
	}
}
