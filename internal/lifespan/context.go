// Package lifespan has contexts that end with a message's delivery.
package lifespan

import (
	"context"
	"sync"
)

// Context is its parent until the message is acked or nacked, and then it has ended. It is context.WithCancel, but for
// one thing: it registers with its parent, whose lock all messages of a subscription share, only when somebody asks for
// Done. Handlers under a claim never do. It is safe for concurrent use.
type Context struct {
	context.Context // the parent

	mu     sync.Mutex
	ended  bool
	inner  context.Context // nil: nobody asked
	cancel context.CancelFunc
}

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} { return c.cancelable().Done() }

// Err implements context.Context.
func (c *Context) Err() error { return c.current().Err() }

// Value implements context.Context. It hands down to the inner context too, because package context finds by a value what
// it may attach a child to.
func (c *Context) Value(key any) any { return c.current().Value(key) }

// End ends the context.
func (c *Context) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.cancel != nil {
		c.cancel()
	}
}

func (c *Context) cancelable() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.cancel = context.WithCancel(c.Context)
		if c.ended {
			c.cancel()
		}
	}
	return c.inner
}

// current is the context that says how things stand.
func (c *Context) current() context.Context {
	c.mu.Lock()
	inner, ended := c.inner, c.ended
	c.mu.Unlock()
	switch {
	case inner != nil:
		return inner
	case ended:
		return c.cancelable()
	}
	return c.Context
}
