package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

const (
	stopTimeout = 15 * time.Second       // for a process to end by itself
	restartWait = 200 * time.Millisecond // after a process ended that nobody killed
	maxCrashes  = 20                     // of that kind, before giving up
)

// processes runs the parts as processes of their own and starts those again that end.
type processes struct {
	config []byte
	env    []string
	count  func(string)
	logs   io.Writer

	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	failed  chan error
	slots   []*slot
}

// slot is one process after another, all in the same role.
type slot struct {
	role string
	mu   sync.Mutex
	cmd  *exec.Cmd // nil while none is running
	dead bool      // killed by us
	up   time.Time
}

func newProcesses(ctx context.Context, cfg config, env []string, count func(string), logs io.Writer) (*processes, error) {
	b, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	p := &processes{config: b, env: env, count: count, logs: logs, failed: make(chan error, 1)}
	p.ctx, p.stop = context.WithCancel(ctx)
	return p, nil
}

func (p *processes) start(role string) {
	s := &slot{role: role}
	p.slots = append(p.slots, s)
	p.running.Go(func() {
		if err := p.keep(p.ctx, s); err != nil {
			select {
			case p.failed <- err:
			default:
			}
		}
	})
}

func (p *processes) failure() <-chan error { return p.failed }

// keep runs the slot's process again and again; the client's until it has ended well.
func (p *processes) keep(ctx context.Context, s *slot) error {
	for crashes := 0; ctx.Err() == nil; {
		killed, err := p.once(ctx, s)
		switch {
		case ctx.Err() != nil, killed:
			continue
		case err == nil && s.role == "client":
			return nil
		}
		if crashes++; crashes == maxCrashes {
			return fmt.Errorf("the %s process ended %d times by itself, at last with: %w; see its log with -v", s.role, crashes, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(restartWait):
		}
	}
	return nil
}

func (p *processes) once(ctx context.Context, s *slot) (killed bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	// Ending ctx asks it to stop; WaitDelay later it is killed.
	pr, pw, err := os.Pipe()
	if err != nil {
		return false, err
	}
	defer pw.Close()
	cmd := exec.CommandContext(ctx, self)
	cmd.Cancel = func() error {
		_, err := pw.WriteString("stop\n")
		return err
	}
	cmd.WaitDelay = stopTimeout
	cmd.Stdin = pr
	cmd.Stderr = p.logs
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Env = append(cmd.Env, roleVariable+"="+s.role, configVariable+"="+string(p.config))
	out, err := cmd.StdoutPipe()
	if err != nil {
		_ = pr.Close()
		return false, err
	}
	err = cmd.Start()
	_ = pr.Close()
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	s.cmd, s.dead, s.up = cmd, false, time.Now()
	s.mu.Unlock()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		p.count(lines.Text())
	}
	err = cmd.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cmd = nil
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return s.dead, err
}

// kill sends SIGKILL to a process that has been at work for a while, and returns its role. The client is spared.
func (p *processes) kill(prefer string) (role string, ok bool) {
	order := rand.Perm(len(p.slots))
	slices.SortStableFunc(order, func(a, b int) int { // those of the preferred role first
		return boolToInt(p.slots[b].role == prefer) - boolToInt(p.slots[a].role == prefer)
	})
	for _, i := range order {
		s := p.slots[i]
		if s.role != "client" && s.kill() {
			return s.role, true
		}
	}
	return "", false
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (s *slot) kill() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil || s.dead || time.Since(s.up) < 300*time.Millisecond || s.cmd.Process.Kill() != nil {
		return false
	}
	s.dead = true
	return true
}

func (p *processes) close() {
	p.stop()
	p.running.Wait()
}
