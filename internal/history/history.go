// Package history records what concurrent clients did and saw, and checks it against a model: it searches for an order in which the
// clients could have done and seen the same one after the other (linearizability, with porcupine). The outcome of an operation whose
// answer was lost stays open: the checker tries each outcome, at any later time.
package history

import (
	"cmp"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// Operation is what a client did with a key, and what it saw.
type Operation struct {
	Client int    `json:"client"`
	Key    string `json:"key"`
	Name   string `json:"op"` // one of the model's names
	Value  string `json:"value,omitempty"`
	Call   int64  `json:"call"`   // nanoseconds since the history began
	Return int64  `json:"return"` // like Call; Open: it may take effect at any later time
}

// Open is the Return of an operation whose end is not known.
const Open = int64(1<<63 - 1)

// History is a recording. It is safe for concurrent use.
type History struct {
	began time.Time
	mu    sync.Mutex
	ops   []Operation
}

// New returns an empty history, which begins now.
func New() *History { return &History{began: time.Now()} }

// Call is a running operation.
type Call struct {
	h  *History
	op Operation
}

// Call begins an operation of the client on the key.
func (h *History) Call(client int, key string) *Call {
	return &Call{h, Operation{Client: client, Key: key, Call: h.At(time.Now())}}
}

// Since records that the operation may have taken effect as early as the other one.
func (c *Call) Since(other *Call) *Call {
	c.op.Call = other.op.Call
	return c
}

// Return records the end of the operation and its result.
func (c *Call) Return(name, value string) {
	c.op.Return = c.h.At(time.Now())
	c.end(name, value)
}

// Lose records an operation that may take effect later or, if the model allows it, never.
func (c *Call) Lose(name, value string) {
	c.op.Return = Open
	c.end(name, value)
}

func (c *Call) end(name, value string) {
	c.op.Name, c.op.Value = name, value
	c.h.Add(c.op)
}

// At converts a time to one of the history.
func (h *History) At(t time.Time) int64 { return t.Sub(h.began).Nanoseconds() }

// Add adds an operation with known times.
func (h *History) Add(op Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
}

// Operations returns the operations recorded so far, ordered by their calls.
func (h *History) Operations() []Operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	ops := slices.Clone(h.ops)
	slices.SortStableFunc(ops, func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) })
	return ops
}

// Count returns the number of operations with the name.
func (h *History) Count(name string) (n int) {
	for _, op := range h.Operations() {
		if op.Name == name {
			n++
		}
	}
	return n
}

// Model is the sequential behaviour of a key.
type Model[S comparable] struct {
	Init S
	// Step returns the states that the operation can lead to, or none if it is impossible in the state.
	Step func(state S, op Operation) []S
}

// patience bounds the search for each key.
const patience = 2 * time.Minute

// Unordered returns the keys whose operations have no order that the model allows, and the keys for which the search took too long.
func Unordered[S comparable](ops []Operation, model Model[S]) (wrong, undecided []string) {
	byKey := map[string][]porcupine.Operation{}
	var keys []string
	for _, op := range ops {
		if byKey[op.Key] == nil {
			keys = append(keys, op.Key)
		}
		byKey[op.Key] = append(byKey[op.Key], porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Return: op.Return})
	}
	one := porcupine.NondeterministicModel{
		Init: func() []any { return []any{model.Init} },
		Step: func(state, input, _ any) (next []any) {
			for _, s := range model.Step(state.(S), input.(Operation)) {
				next = append(next, s)
			}
			return next
		},
	}
	for _, key := range keys {
		switch porcupine.CheckOperationsTimeout(one.ToModel(), byKey[key], patience) {
		case porcupine.Ok:
		case porcupine.Illegal:
			wrong = append(wrong, key)
		case porcupine.Unknown:
			undecided = append(undecided, key)
		}
	}
	return wrong, undecided
}

// Check fails the test unless each key's operations have an order that the model allows. Then it writes the history as JSON, for this
// checker and others.
func Check[S comparable](t testing.TB, h *History, model Model[S]) {
	t.Helper()
	ops := h.Operations()
	wrong, undecided := Unordered(ops, model)
	if len(wrong)+len(undecided) == 0 {
		return
	}
	path, err := write(t, ops)
	t.Errorf("%d operations are no history of the model at the keys %q, undecided after %v at %q: see %s (error: %v)",
		len(ops), wrong, patience, undecided, path, err)
}

// write stores the operations in a file that survives the test.
func write(t testing.TB, ops []Operation) (path string, err error) {
	var dir string
	if f := flag.Lookup("test.artifacts"); f != nil && f.Value.String() == "true" {
		dir = t.ArtifactDir()
	} else {
		dir, err = os.MkdirTemp("", "history-") //nolint:usetesting // the test's own directory would be removed at its end
	}
	if err != nil {
		return "", err
	}
	text, err := json.MarshalIndent(ops, "", " ")
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "history.json")
	return path, os.WriteFile(path, text, 0o600)
}
