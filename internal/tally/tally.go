// Package tally sums amounts by name, in memory, until the sums are taken.
package tally

import (
	"maps"
	"sync"
)

// Amount is a value that can be added to another.
type Amount[T any] interface {
	comparable
	Plus(other T) T
}

// Tally sums amounts. Its zero value is empty and ready for use. It is safe for concurrent use.
type Tally[T Amount[T]] struct {
	// Most is how many names are counted separately; amounts of further names are summed under "". 0: all.
	Most int

	mu sync.Mutex
	of map[string]T
}

// Add adds an amount for the name.
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

// Take returns the sums since the last call. A name with a sum keeps its own sum until the next call, whatever other names are added.
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
