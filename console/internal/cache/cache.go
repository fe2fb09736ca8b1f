// Package cache shares reads of a database among sessions: one session reads, and the others wait for its result.
package cache

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// maxEntries bounds the number of results. A result that nobody has requested for maxUnused is dropped at the next read.
	maxEntries = 256
	maxUnused  = 5 * time.Minute
	// freshError bounds how long an error is kept: an outage may be over.
	freshError = 3 * time.Second
)

// Cache keeps results for a short time. It is safe for concurrent use.
type Cache struct {
	timeout time.Duration
	slots   chan struct{}
	own     map[string]chan struct{} // of keys that wait for no other one

	mu      sync.Mutex
	entries map[string]*entry
}

type entry struct {
	ready chan struct{} // closed when the fields below are set
	value any
	at    time.Time // when value was read
	tried time.Time
	err   error
	asked time.Time // when it was last requested
}

// New returns a Cache that runs at most this many reads at once, each within the timeout. Each key in own has an additional slot of its
// own, so that it does not wait for slow reads of other keys.
func New(reads int, timeout time.Duration, own ...string) *Cache {
	c := &Cache{timeout: timeout, slots: make(chan struct{}, reads), own: map[string]chan struct{}{}, entries: map[string]*entry{}}
	for _, key := range own {
		c.own[key] = make(chan struct{}, 1)
	}
	return c
}

// Get returns the cached value for the key if it is younger than fresh. Otherwise it calls load. If load fails, Get returns the
// error with the last value and its time; a zero time means that there is no value. An error is kept for 3 s at most. load must not keep its context, and its
// result must not be changed. If load calls Get with its context, that read uses its slot.
func Get[T any](ctx context.Context, c *Cache, key string, fresh time.Duration, load func(context.Context) (T, error)) (T, time.Time, error) {
	e, mine := c.entry(key, fresh)
	if mine {
		read(ctx, c, key, e, load)
	}
	select {
	case <-e.ready:
	case <-ctx.Done():
		var none T
		return none, time.Time{}, ctx.Err()
	}
	value, _ := e.value.(T)
	return value, e.at, e.err
}

// Once calls load as Get does, but shares and keeps nothing.
func Once[T any](ctx context.Context, c *Cache, load func(context.Context) (T, error)) (T, error) {
	return run(ctx, c, "", load)
}

// Last returns the last value for the key and its time. A zero time means that there is no value.
func Last[T any](c *Cache, key string) (T, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	if e == nil {
		e = &entry{}
	}
	e.asked = time.Now()
	value, _ := e.value.(T)
	return value, e.at
}

// entry returns the entry for the key. If mine is true, the caller must settle it.
func (c *Cache) entry(key string, fresh time.Duration) (e *entry, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, old := time.Now(), c.entries[key]
	if old != nil {
		old.asked = now
	}
	if old != nil && old.settled() && old.err != nil {
		fresh = min(fresh, freshError)
	}
	if old != nil && (!old.settled() || time.Since(old.tried) < fresh) {
		return old, false
	}
	for key, other := range c.entries {
		if other.settled() && now.Sub(other.asked) > maxUnused {
			delete(c.entries, key)
		}
	}
	e = &entry{ready: make(chan struct{}), asked: now}
	if old != nil {
		e.value, e.at = old.value, old.at
	}
	if old == nil && len(c.entries) >= maxEntries {
		c.evict()
	}
	c.entries[key] = e
	return e, true
}

func (e *entry) settled() bool {
	select {
	case <-e.ready:
		return true
	default:
		return false
	}
}

// evict drops the result that was requested longest ago. It keeps results that someone waits for.
func (c *Cache) evict() {
	oldest := ""
	for key, e := range c.entries {
		if e.settled() && (oldest == "" || e.tried.Before(c.entries[oldest].tried)) {
			oldest = key
		}
	}
	delete(c.entries, oldest)
}

func (c *Cache) settle(e *entry, value any, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.tried, e.err = time.Now(), err
	if err == nil {
		e.value, e.at = value, e.tried
	}
	close(e.ready)
}

// Forget makes the next Get of each key call load.
func (c *Cache) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.entries {
		if e.settled() {
			e.tried = time.Time{}
		} else {
			delete(c.entries, key) // its read may have begun before the caller's change
		}
	}
}

// read settles the entry even if load panics, because others wait for it.
func read[T any](ctx context.Context, c *Cache, key string, e *entry, load func(context.Context) (T, error)) {
	var value T
	err := errors.New("the read panicked")
	defer func() { c.settle(e, value, err) }()
	value, err = run(ctx, c, key, load)
}

// run calls load. Others wait for the result, so it continues when the first session disconnects; the timeout bounds it.
func run[T any](ctx context.Context, c *Cache, key string, load func(context.Context) (T, error)) (value T, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	defer cancel()
	if ctx.Value(holding{}) != nil {
		return load(ctx)
	}
	slots := c.slots
	if own := c.own[key]; own != nil {
		slots = own
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return value, ctx.Err()
	}
	defer func() { <-slots }()
	return load(context.WithValue(ctx, holding{}, true))
}

// holding marks the context of a read that has a slot.
type holding struct{}
