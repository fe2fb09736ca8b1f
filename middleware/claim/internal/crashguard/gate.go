package crashguard

import (
	"context"
	"sync"
	"time"
)

// Gate lets handlers run together, or one alone. The zero value is open. It is safe for concurrent use. A handler that waits to run
// alone keeps later ones out: otherwise it would wait for ever in a busy process.
type Gate struct {
	mu      sync.Mutex
	in      int
	closed  bool          // a handler runs alone, or waits for the others to leave
	changed chan struct{} // closed at the next change; nil if nobody waits
}

// hands is the gate of the process, for the handlers of all Guards, because a crash ends the whole process.
var hands Gate

// enter waits until no handler runs alone.
func (g *Gate) enter(ctx context.Context) (leave func(), err error) {
	if err := g.wait(ctx, func() bool {
		if g.closed {
			return false
		}
		g.in++
		return true
	}); err != nil {
		return nil, err
	}
	return func() { g.change(func() { g.in-- }) }, nil
}

// enterAlone waits until no handler is in the gate. After limit, other handlers may enter again, because the one alone may wait for
// one of them, or may never end.
func (g *Gate) enterAlone(ctx context.Context, limit time.Duration) (leave func(), err error) {
	if err := g.wait(ctx, func() bool {
		if g.closed {
			return false
		}
		g.closed = true
		return true
	}); err != nil {
		return nil, err
	}
	if err := g.wait(ctx, func() bool {
		if g.in > 0 {
			return false
		}
		g.in++
		return true
	}); err != nil {
		g.change(func() { g.closed = false })
		return nil, err
	}
	open := sync.OnceFunc(func() { g.change(func() { g.closed = false }) })
	expiry := time.AfterFunc(limit, open)
	return func() {
		expiry.Stop()
		g.change(func() { g.in-- })
		open()
	}, nil
}

// wait calls try now and after each change, until it returns true.
func (g *Gate) wait(ctx context.Context, try func() bool) error {
	for {
		g.mu.Lock()
		if try() {
			g.mu.Unlock()
			return nil
		}
		if g.changed == nil {
			g.changed = make(chan struct{})
		}
		changed := g.changed
		g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *Gate) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}
