// Package turn lets callers take turns, and serves together those that wait at the same time. It knows nothing of what they want.
package turn

import (
	"context"
	"slices"
	"sync"
)

// Line is callers that wait, each with a wish and for an answer. It is safe for concurrent use.
type Line[W, A any] struct {
	turn  chan struct{} // holds one token; the goroutine that takes it serves
	joins func(first, other W) bool

	mu      sync.Mutex
	waiting []*Caller[W, A]
}

// Caller is one in the line.
type Caller[W, A any] struct {
	Wish W
	done chan A
}

// Answer lets the caller go. It is called once.
func (c *Caller[W, A]) Answer(a A) { c.done <- a }

// NewLine returns an empty line. joins reports whether two wishes may be served together.
func NewLine[W, A any](joins func(first, other W) bool) *Line[W, A] {
	l := &Line[W, A]{turn: make(chan struct{}, 1), joins: joins}
	l.turn <- struct{}{}
	return l
}

// Do returns the answer to the wish, or the error of ctx if that ends before the wish is being served. One of those that wait calls its
// serve for all that may join it; serve answers each.
func (l *Line[W, A]) Do(ctx context.Context, wish W, serve func(group []*Caller[W, A])) (answer A, err error) {
	c := &Caller[W, A]{wish, make(chan A, 1)}
	l.mu.Lock()
	l.waiting = append(l.waiting, c)
	l.mu.Unlock()
	select {
	case <-l.turn:
		if ctx.Err() == nil {
			serve(l.gather(c))
		}
		l.turn <- struct{}{}
	case <-ctx.Done():
	case answer = <-c.done:
		return answer, nil
	}
	if l.leave(c) {
		return answer, ctx.Err()
	}
	return <-c.done, nil
}

// Close waits for who is being served. Whoever still waits does so until his context ends.
func (l *Line[W, A]) Close() { <-l.turn }

// Waiting is how many wait.
func (l *Line[W, A]) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// leave reports whether the caller was still waiting. It no longer is.
func (l *Line[W, A]) leave(c *Caller[W, A]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, c)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	return i >= 0
}

// gather takes the caller, and those that may join it, from those that wait. None, if the caller no longer does.
func (l *Line[W, A]) gather(c *Caller[W, A]) (group []*Caller[W, A]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.waiting, c) {
		return nil
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(w *Caller[W, A]) bool {
		joins := w == c || l.joins(c.Wish, w.Wish)
		if joins {
			group = append(group, w)
		}
		return joins
	})
	return group
}
