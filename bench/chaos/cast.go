package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace-go/millrace/internal/role"
)

const (
	perRole     = 2 // processes
	restartWait = 300 * time.Millisecond
	// stopWithin is more than what the parts may take by their own bounds, when the network is mute and the machine busy.
	stopWithin = 45 * time.Second
)

// cast is the processes of the system, each of which is started again when it ends.
type cast struct {
	cfg      config
	logs     io.Writer
	children []*child
	ctx      context.Context
	stop     context.CancelFunc
	running  sync.WaitGroup
}

// child is one process after another, all in the same role.
type child struct {
	role   string
	number int
	fault  sync.Mutex // held while a fault befalls it

	mu     sync.Mutex
	life   *life // nil while no process runs
	ends   ends  // of those that worked, when no fault made them
	starts ends  // that came to nothing: PostgreSQL or the broker was not there
}

// ends are those of processes.
type ends struct {
	n    int
	last error
}

// life is the time of one process.
type life struct {
	*role.Process
	working atomic.Bool // it has said so, and says nothing else
	doomed  atomic.Bool // a fault is about to end it
	noted   sync.Once
}

func (l *life) Write(b []byte) (int, error) {
	l.working.Store(true)
	return len(b), nil
}

func newCast(ctx context.Context, cfg config, logs io.Writer) *cast {
	c := &cast{cfg: cfg, logs: logs}
	c.ctx, c.stop = context.WithCancel(ctx)
	for _, name := range []string{"consumer", "relay", "service"} {
		for number := range perRole {
			one := &child{role: name, number: number}
			c.children = append(c.children, one)
			c.running.Go(func() { c.keep(one) })
		}
	}
	return c
}

func (c *cast) close() {
	c.stop()
	c.running.Wait()
}

func (c *cast) keep(one *child) {
	for c.ctx.Err() == nil {
		c.once(one)
		_ = pause(c.ctx, restartWait) // the loop sees its end
	}
}

func (c *cast) once(one *child) {
	cfg := c.cfg
	cfg.Number = one.number
	l := &life{}
	var err error
	if l.Process, err = role.Start(one.role, cfg, l, c.logs); err != nil {
		one.note(l, err)
		return
	}
	one.set(l)
	defer one.set(nil)
	select {
	case <-l.Ended():
		if !l.doomed.Load() {
			one.note(l, l.Err())
		}
	case <-c.ctx.Done():
		if err := l.stop(); err != nil {
			one.note(l, err)
		}
	}
}

func (one *child) set(l *life) {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.life = l
}

// note counts an end that no fault made, and one that was not as it should be.
func (one *child) note(l *life, err error) {
	l.noted.Do(func() {
		one.mu.Lock()
		defer one.mu.Unlock()
		which := &one.starts
		if l.working.Load() {
			which = &one.ends
		}
		which.n++
		which.last = err
	})
}

// await returns the process, once one runs.
func (one *child) await(ctx context.Context) (*life, error) {
	for {
		one.mu.Lock()
		l := one.life
		one.mu.Unlock()
		if l != nil {
			return l, nil
		}
		if err := pause(ctx, restartWait/10); err != nil {
			return nil, err
		}
	}
}

// doom returns a process for a fault that ends it.
func (one *child) doom(ctx context.Context, working bool) (*life, error) {
	for {
		l, err := one.await(ctx)
		if err != nil {
			return nil, err
		}
		if l.working.Load() || !working {
			l.doomed.Store(true)
			select {
			case <-l.Ended(): // before
				one.note(l, l.Err())
			default:
				return l, nil
			}
		}
		if err := pause(ctx, restartWait/10); err != nil {
			return nil, err
		}
	}
}

func (one *child) kill(ctx context.Context) error {
	l, err := one.doom(ctx, false)
	if err == nil {
		l.Kill()
	}
	return err
}

// freeze stops the process where it is, without its knowledge, and lets it go on later.
func (one *child) freeze(ctx context.Context, lasts time.Duration) error {
	p, err := one.await(ctx)
	if err != nil {
		return err
	}
	if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil {
		return err
	}
	select {
	case <-p.Ended():
		return nil
	case <-time.After(lasts):
	case <-ctx.Done():
	}
	return syscall.Kill(p.PID(), syscall.SIGCONT)
}

// replace tells a process that works to end, as a deployment does.
func (one *child) replace(ctx context.Context) error {
	l, err := one.doom(ctx, true)
	if err != nil {
		return err
	}
	if err := l.stop(); err != nil {
		one.note(l, err)
	}
	return nil
}

// stop lets the process end by itself. One that does not writes its goroutines into the log.
func (l *life) stop() error {
	l.Tell(role.Stop)
	select {
	case <-l.Ended():
		return l.Err()
	case <-time.After(stopWithin):
		_ = syscall.Kill(l.PID(), syscall.SIGQUIT) // it may just have ended
		_ = l.Stop(restartWait)
		return fmt.Errorf("process %d did not stop within %v: its goroutines are in the log", l.PID(), stopWithin)
	}
}

func (one *child) tell(ctx context.Context, what string, lasts time.Duration) error {
	p, err := one.await(ctx)
	if err == nil {
		p.Tell(what + " " + lasts.String())
	}
	return err
}

// of returns the children of a role.
func (c *cast) of(name string) (found []*child) {
	for _, one := range c.children {
		if one.role == name {
			found = append(found, one)
		}
	}
	return found
}

// unasked tells which processes ended although they worked and no fault made them, or with an error when they were told to.
func (c *cast) unasked() []string {
	return c.tell(func(one *child) ends { return one.ends }, "%s %d ended %d times by itself or badly, at last: %v")
}

// unstarted tells which processes ended before they worked, as they may while PostgreSQL or the broker is away.
func (c *cast) unstarted() []string {
	return c.tell(func(one *child) ends { return one.starts }, "%s %d was started %d times in vain, at last: %v")
}

func (c *cast) tell(of func(*child) ends, format string) (lines []string) {
	for _, one := range c.children {
		one.mu.Lock()
		if e := of(one); e.n > 0 {
			lines = append(lines, fmt.Sprintf(format, one.role, one.number, e.n, e.last))
		}
		one.mu.Unlock()
	}
	return lines
}

// trouble is what ended without a fault, as an error, nil when nothing did.
func (c *cast) trouble() (err error) {
	for _, text := range append(c.unasked(), c.unstarted()...) {
		err = errors.Join(err, errors.New(text))
	}
	return err
}
