package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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

	mu    sync.Mutex
	life  *life // nil while no process runs
	ended []restart
}

// restart is the end of a process that no fault of the schedule made, or one with an error although it was told to end.
type restart struct {
	At      time.Time `json:"at"`
	Process string    `json:"process"`
	Excuse  string    `json:"excuse,omitempty"`
	Error   string    `json:"error"`
}

// The excuses, as the table names them: PostgreSQL or the broker may be away when a process begins, and when it has
// something to note at its end.
const (
	inVain  = "started in vain"
	noClean = "no clean end"
)

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

// note keeps the end of a process that the schedule does not explain.
func (one *child) note(l *life, err error) {
	l.noted.Do(func() {
		e := restart{At: time.Now(), Process: fmt.Sprintf("%s %d", one.role, one.number), Error: "exit status 0"}
		if err != nil {
			e.Error = err.Error()
		}
		switch {
		case !l.working.Load():
			e.Excuse = inVain
		case l.doomed.Load() && !errors.Is(err, errDeaf):
			e.Excuse = noClean
		}
		one.mu.Lock()
		defer one.mu.Unlock()
		one.ended = append(one.ended, e)
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
			select {
			case <-l.Ended(): // by itself
				one.note(l, l.Err())
			default:
				l.doomed.Store(true)
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
	l, err := one.await(ctx)
	for err == nil && syscall.Kill(l.PID(), syscall.SIGSTOP) != nil { // it has just ended
		if err = pause(ctx, restartWait/10); err == nil {
			l, err = one.await(ctx)
		}
	}
	if err != nil {
		return err
	}
	select {
	case <-l.Ended():
	case <-time.After(lasts):
	case <-ctx.Done():
	}
	_ = syscall.Kill(l.PID(), syscall.SIGCONT) // it may have ended
	return nil
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

var errDeaf = fmt.Errorf("it did not stop within %v: its goroutines are in the log", stopWithin)

// stop lets the process end by itself. One that does not writes its goroutines into the log.
func (l *life) stop() error {
	l.Tell(role.Stop)
	select {
	case <-l.Ended():
		return l.Err()
	case <-time.After(stopWithin):
		_ = syscall.Kill(l.PID(), syscall.SIGQUIT) // it may just have ended
		_ = l.Stop(restartWait)
		return errDeaf
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

// restarts are those of all processes, in their order.
func (c *cast) restarts() (all []restart) {
	for _, one := range c.children {
		one.mu.Lock()
		all = append(all, one.ended...)
		one.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b restart) int { return a.At.Compare(b.At) })
	return all
}
