package stage

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/transport/memory"
)

const (
	stopTimeout = 15 * time.Second       // for a process to end by itself
	restartWait = 200 * time.Millisecond // after a process ended without being killed
	maxCrashes  = 20                     // how many such ends, before giving up
	youth       = 300 * time.Millisecond // a process is not killed this soon after its start
)

// Cast runs the parts: as processes that are restarted when they end, or as goroutines on the memory broker.
type Cast struct {
	Counts  Counts
	Kills   map[string]int                    // by role; read it only when nothing is killed any more
	config  func(role string, number int) any // of a process
	logs    io.Writer
	play    func(ctx context.Context, role string, number int) error // nil: the parts are processes
	stage   *Stage
	memory  *memory.Transport
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	failed  chan error
	slots   []*slot
}

// slot runs one process after another in the same role.
type slot struct {
	role    string
	number  int
	up      atomic.Pointer[time.Time] // when its first line came; nil before that
	mu      sync.Mutex                // not held while its output is handled, because Kill waits for the end of that
	process *role.Process             // nil while none is running
	killed  bool
}

// NewProcesses returns an empty cast whose parts are processes. They log to logs, and config returns the configuration of each. The
// caller must call Close.
func NewProcesses(ctx context.Context, logs io.Writer, config func(role string, number int) any) *Cast {
	c := &Cast{Kills: map[string]int{}, config: config, logs: logs, failed: make(chan error, 1)}
	c.ctx, c.stop = context.WithCancel(ctx)
	return c
}

// NewGoroutines returns an empty cast whose parts run in this process, where nothing can be killed.
func NewGoroutines(ctx context.Context, play func(ctx context.Context, role string, number int) error) *Cast {
	c := NewProcesses(ctx, nil, nil)
	c.play = play
	return c
}

// NewCast returns an empty cast: of processes, or of goroutines for the memory broker. The caller must call Close.
func (s *Stage) NewCast(ctx context.Context, roles Roles) (c *Cast, err error) {
	if s.Config.Broker == "memory" {
		c = NewGoroutines(ctx, func(ctx context.Context, role string, number int) error {
			return roles[role](ctx, c.part(role, number))
		})
		c.memory, err = memory.New(memory.Config{})
	} else {
		c = NewProcesses(ctx, s.logs, func(_ string, number int) any {
			cfg := s.Config
			cfg.Number = number
			return cfg
		})
	}
	c.stage = s
	return c, err
}

// Start starts that many parts of the role.
func (c *Cast) Start(name string, parts int) {
	for number := range parts {
		s := &slot{role: name, number: number}
		c.slots = append(c.slots, s)
		c.running.Go(func() {
			err := c.keep(s)
			if err == nil || c.ctx.Err() != nil {
				return
			}
			select {
			case c.failed <- fmt.Errorf("%s: %w", name, err):
			default:
			}
		})
	}
}

// Await returns when the parts have reported it that often.
func (c *Cast) Await(ctx context.Context, what string, times int) error {
	for c.Counts.Get(what) < times {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-c.failed:
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// Close stops all parts and waits until they have ended.
func (c *Cast) Close() {
	c.stop()
	c.running.Wait()
	if c.memory != nil {
		_ = c.memory.Close()
	}
}

// Main returns a connected part in this process, for what the example itself publishes.
func (c *Cast) Main(ctx context.Context) (p *Part, disconnect func(), err error) {
	p = c.part("main", 0)
	disconnect, err = p.Connect(ctx)
	return p, disconnect, err
}

func (c *Cast) part(role string, number int) *Part {
	cfg := c.stage.Config
	cfg.Number = number
	p := &Part{Config: cfg, Log: slog.New(slog.NewTextHandler(c.stage.logs, nil)).With("part", role), Count: c.Counts.Add}
	if c.memory != nil {
		p.Broker = c.memory
	}
	return p
}

// keep runs the slot's part again and again until the cast is closed.
func (c *Cast) keep(s *slot) error {
	if c.play != nil {
		return c.play(c.ctx, s.role, s.number)
	}
	for crashes := 0; c.ctx.Err() == nil; {
		killed, err := c.once(s)
		if c.ctx.Err() != nil || killed {
			continue
		}
		if crashes++; crashes == maxCrashes {
			return fmt.Errorf("the process ended %d times by itself, at last with: %w; -v shows its log", crashes, err)
		}
		select {
		case <-c.ctx.Done():
		case <-time.After(restartWait):
		}
	}
	return nil
}

func (c *Cast) once(s *slot) (killed bool, err error) {
	s.up.Store(nil)
	told := &lines{each: func(what string) {
		now := time.Now()
		s.up.CompareAndSwap(nil, &now)
		c.Counts.Add(what)
	}}
	said := "it said nothing"
	log := io.MultiWriter(c.logs, &lines{each: func(line string) { said = line }})
	process, err := role.Start(s.role, c.config(s.role, s.number), told, log)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	s.process, s.killed = process, false
	s.mu.Unlock()
	select {
	case <-process.Ended():
		if err = process.Err(); err != nil {
			err = fmt.Errorf("%w: %s", err, said)
		}
	case <-c.ctx.Done():
		err = process.Stop(stopTimeout)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = nil
	return s.killed, err
}

// Failed returns a channel for the error of a part that will not be restarted.
func (c *Cast) Failed() <-chan error { return c.failed }

// Kill sends SIGKILL to a process that has run for a while, if possible of the preferred role, and counts it.
func (c *Cast) Kill(prefer string) bool {
	order := rand.Perm(len(c.slots))
	for _, preferred := range []bool{true, false} {
		for _, i := range order {
			if s := c.slots[i]; (s.role == prefer) == preferred && s.kill() {
				c.Kills[s.role]++
				return true
			}
		}
	}
	return false
}

func (s *slot) kill() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if up := s.up.Load(); s.process == nil || s.killed || up == nil || time.Since(*up) < youth {
		return false
	}
	s.killed = s.process.Kill()
	return s.killed
}

// lines splits what is written to it into lines.
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

// Counts sums what the parts report. Its zero value is ready, and it is safe for concurrent use.
type Counts struct {
	mu sync.Mutex
	n  map[string]int
}

// Add adds one.
func (c *Counts) Add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[what]++
}

// Get returns the count.
func (c *Counts) Get(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[what]
}
