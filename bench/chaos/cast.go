package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/millrace-go/millrace/internal/role"
)

const (
	perRole     = 2 // processes
	restartWait = 300 * time.Millisecond
	stopWithin  = 20 * time.Second
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

	mu      sync.Mutex
	process *role.Process // nil while none is running
	ends    int           // that no fault made: the process could not go on, or not start
	failed  error         // the last of these
	doomed  bool
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
		if err := c.once(one); err != nil {
			one.mu.Lock()
			if !one.doomed {
				one.ends++
				one.failed = err
			}
			one.mu.Unlock()
		}
		_ = pause(c.ctx, restartWait) // the loop sees its end
	}
}

func (c *cast) once(one *child) error {
	cfg := c.cfg
	cfg.Number = one.number
	process, err := role.Start(one.role, cfg, io.Discard, c.logs)
	if err != nil {
		return err
	}
	one.set(process, false)
	defer one.set(nil, true)
	select {
	case <-process.Ended():
		return process.Err()
	case <-c.ctx.Done():
		return process.Stop(stopWithin)
	}
}

func (one *child) set(p *role.Process, keep bool) {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.process = p
	if !keep {
		one.doomed = false
	}
}

// await returns the process, once one runs. The fault that asks for it ends it, when ends is set.
func (one *child) await(ctx context.Context, ends bool) (*role.Process, error) {
	for {
		one.mu.Lock()
		p := one.process
		one.doomed = one.doomed || ends && p != nil
		one.mu.Unlock()
		if p != nil {
			return p, nil
		}
		if err := pause(ctx, restartWait/10); err != nil {
			return nil, err
		}
	}
}

func (one *child) kill(ctx context.Context) error {
	p, err := one.await(ctx, true)
	if err == nil && !p.Kill() {
		err = errors.New("it had ended by itself")
	}
	return err
}

// freeze stops the process where it is, without its knowledge, and lets it go on later.
func (one *child) freeze(ctx context.Context, lasts time.Duration) error {
	p, err := one.await(ctx, false)
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

// replace lets the process end by itself, as a deployment does.
func (one *child) replace(ctx context.Context) error {
	p, err := one.await(ctx, true)
	if err != nil {
		return err
	}
	return p.Stop(stopWithin)
}

func (one *child) tell(ctx context.Context, what string, lasts time.Duration) error {
	p, err := one.await(ctx, false)
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

// unasked tells which processes ended although no fault made them.
func (c *cast) unasked() (lines []string) {
	for _, one := range c.children {
		one.mu.Lock()
		if one.ends > 0 {
			lines = append(lines, fmt.Sprintf("%s %d ended %d times by itself, at last: %v", one.role, one.number, one.ends, one.failed))
		}
		one.mu.Unlock()
	}
	return lines
}

// trouble is unasked as an error, nil when there was none.
func (c *cast) trouble() (err error) {
	for _, text := range c.unasked() {
		err = errors.Join(err, errors.New(text))
	}
	return err
}
