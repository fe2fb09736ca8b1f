// Package tally adds amounts up by name, in memory, until somebody takes the sums.
package tally

import (
	"maps"
	"sync"
)

// Amount can be added to another one.
type Amount[T any] interface {
	comparable
	Plus(other T) T
}

// Tally adds up. Its zero value is empty and tells all names apart. It is safe for concurrent use.
type Tally[T Amount[T]] struct {
	// Most is how many names it tells apart; what is added for others is under "". 0: all.
	Most int

	mu sync.Mutex
	of map[string]T
}

// Add adds to what the name has.
func (t *Tally[T]) Add(name string, n T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]T{}
	}
	if _, known := t.of[name]; !known && t.Most > 0 && len(t.of) >= t.Most {
		name = ""
	}
	t.of[name] = t.of[name].Plus(n)
}

// Take returns what was added since the last call. A name that has something now is told apart until the next call, whatever other names come.
func (t *Tally[T]) Take() map[string]T {
	t.mu.Lock()
	defer t.mu.Unlock()
	var nothing T
	taken := t.of
	maps.DeleteFunc(taken, func(_ string, n T) bool { return n == nothing })
	t.of = make(map[string]T, len(taken))
	for name := range taken {
		if name != "" {
			t.of[name] = nothing
		}
	}
	return taken
}
