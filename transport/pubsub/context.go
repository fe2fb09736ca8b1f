package pubsub

import (
	"context"
	"sync"
)

// messageContext is its parent until the message is acked or nacked, and then it has ended. It is context.WithCancel,
// but for one thing: it registers with its parent, whose lock all messages of a subscription share, only when somebody
// asks for Done. Handlers under a claim never do.
type messageContext struct {
	context.Context // the parent

	mu     sync.Mutex
	ended  bool
	inner  context.Context // nil: nobody asked
	cancel context.CancelFunc
}

func (c *messageContext) Done() <-chan struct{} { return c.cancelable().Done() }

func (c *messageContext) Err() error { return c.current().Err() }

// Value hands down to the inner context too, because package context finds by a value what it may attach a child to.
func (c *messageContext) Value(key any) any { return c.current().Value(key) }

// end ends the context.
func (c *messageContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.cancel != nil {
		c.cancel()
	}
}

func (c *messageContext) cancelable() context.Context {
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
func (c *messageContext) current() context.Context {
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
