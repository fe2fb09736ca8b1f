// Package lifespan provides contexts that end with a message's delivery.
package lifespan

import (
	"context"
	"sync"
)

// Context behaves like its parent until the message is acked or nacked; then it ends. It is like context.WithCancel, but it registers
// with its parent only when Done is called, because all messages of a subscription share the parent's lock. Handlers under a claim never
// call Done. It is safe for concurrent use.
type Context struct {
	context.Context // the parent

	mu     sync.Mutex
	ended  bool
	inner  context.Context // nil: Done was not called
	cancel context.CancelFunc
}

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} { return c.cancelable().Done() }

// Err implements context.Context.
func (c *Context) Err() error { return c.current().Err() }

// Value implements context.Context. It also asks the inner context, because package context finds the parent of a child context by a
// value.
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

// current returns the context that has the current state.
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
