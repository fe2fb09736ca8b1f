package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/millrace-go/millrace/internal/role"
)

const (
	stopTimeout = 15 * time.Second       // for a process to end by itself
	restartWait = 200 * time.Millisecond // after a process ended that nobody killed
	maxCrashes  = 20                     // of that kind, before giving up
)

// processes runs the parts as processes of their own and starts those again that end.
type processes struct {
	config config
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
	role    string
	mu      sync.Mutex
	process *role.Process // nil while none is running
	dead    bool          // killed by us
	up      time.Time
}

func newProcesses(ctx context.Context, cfg config, count func(string), logs io.Writer) *processes {
	p := &processes{config: cfg, count: count, logs: logs, failed: make(chan error, 1)}
	p.ctx, p.stop = context.WithCancel(ctx)
	return p
}

func (p *processes) start(part string) {
	s := &slot{role: part}
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
	process, err := role.Start(s.role, p.config, &lines{each: p.count}, p.logs)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	s.process, s.dead, s.up = process, false, time.Now()
	s.mu.Unlock()
	select {
	case <-process.Ended():
		err = process.Err()
	case <-ctx.Done():
		err = process.Stop(stopTimeout)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = nil
	return s.dead, err
}

// lines hands on what is written to it, line by line.
type lines struct {
	each func(string)
	rest []byte
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(b), nil
		}
		l.each(string(line))
		l.rest = rest
	}
}

// kill sends SIGKILL to a process that has been at work for a while, and returns its role. The client is spared.
func (p *processes) kill(prefer string) (killed string, ok bool) {
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
	if s.process == nil || s.dead || time.Since(s.up) < 300*time.Millisecond {
		return false
	}
	s.dead = s.process.Kill()
	return s.dead
}

func (p *processes) close() {
	p.stop()
	p.running.Wait()
}
