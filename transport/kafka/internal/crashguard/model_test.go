package crashguard

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// world is a group of processes that share partitions. A process dies of a poison message, at once or later, or is killed by somebody.
type world struct {
	*rapid.T
	poison     map[place]bool
	partitions []*partition
	processes  []*process
	forgets    bool               // the group keeps no notes
	accidents  map[place]int      // that somebody killed a process while the message ran alone in it
	fates      map[place][]string // of messages: done, dead
}

type place struct {
	partition int
	offset    int64
}

const messages = 12

// partition is one, as the group and its owner know it.
type partition struct {
	number int
	next   int64 // the group's offset
	note   string

	owner *process
	guard *Guard
	taken int64          // what is below was handed out
	done  map[int64]bool // out of order
}

type process struct {
	flying []flight
	alone  *place
}

// flight is a message in a handler. guard is that of the assignment in which it was handed out.
type flight struct {
	place
	guard *Guard
}

func (w *world) keep(p *partition, note string) {
	if !w.forgets {
		p.note = note
	}
}

// assign begins an assignment of each partition, after the one before was given back if its owner lives.
func (w *world) assign() {
	for _, p := range w.partitions {
		if p.guard != nil {
			if note, commit := p.guard.Release(); commit {
				w.keep(p, note)
			}
		}
		p.owner = rapid.SampledFrom(w.processes).Draw(w.T, "owner")
		p.guard, p.taken, p.done = New(Parse(p.note), messages), p.next, map[int64]bool{}
		p.guard.Until(messages)
	}
	for _, process := range w.processes {
		process.alone = nil // its handler may go on
	}
}

// dies ends a process without a word, and starts another.
func (w *world) dies(dead *process) {
	for _, p := range w.partitions {
		if p.owner == dead {
			p.guard = nil
		}
	}
	w.processes[slices.Index(w.processes, dead)] = &process{}
	w.assign()
}

// poisoned ends a process by a poison message. Nothing else runs alone then: it would be accused.
func (w *world) poisoned(process *process, by place) {
	if process.alone != nil {
		require.Equal(w, by, *process.alone)
	}
	w.dies(process)
}

func (w *world) finish(p *partition, offset int64, fate string) {
	p.done[offset] = true
	n := 0
	for p.done[p.next] {
		at := place{p.number, p.next}
		w.fates[at] = append(w.fates[at], fate)
		p.next++
		n++
	}
	if n > 0 {
		w.keep(p, p.guard.Done(n, p.next))
	}
}

// begin hands out the next message of a partition, if that may be.
func (w *world) begin(p *partition) {
	process := p.owner
	if p.taken >= messages || process.alone != nil {
		return
	}
	at := place{p.number, p.taken}
	if p.guard.Suspicious() {
		if len(process.flying) > 0 {
			return // the gate
		}
		note, rejected := p.guard.Try(at.offset)
		if p.taken++; rejected {
			if !w.poison[at] {
				require.GreaterOrEqual(w, w.accidents[at], MaxAlone, "%v is accused", at)
			}
			w.finish(p, at.offset, "dead")
			return
		}
		w.keep(p, note)
		process.alone = &at
	} else {
		if note, commit := p.guard.Begin(); commit {
			w.keep(p, note)
		}
		p.taken++
	}
	process.flying = append(process.flying, flight{at, p.guard})
	if w.poison[at] && rapid.Bool().Draw(w.T, "at once") {
		w.poisoned(process, at)
	}
}

// end ends a handler.
func (w *world) end(process *process, i int, fails bool) {
	f := process.flying[i]
	process.flying = slices.Delete(process.flying, i, i+1)
	if w.poison[f.place] {
		w.poisoned(process, f.place)
		return
	}
	p := w.partitions[f.partition]
	if p.guard != f.guard {
		return // it is another assignment's message
	}
	if process.alone != nil {
		process.alone = nil
		p.guard.Survived()
		w.keep(p, p.guard.Note())
	}
	if fails {
		process.flying = append(process.flying, f) // again
		if p.guard.Suspicious() {
			note, _ := p.guard.Try(f.offset)
			w.keep(p, note)
			process.alone = &f.place
		}
		return
	}
	w.finish(p, f.offset, "done")
}

func newWorld(r *rapid.T, forgets bool) *world {
	w := &world{T: r, poison: map[place]bool{}, forgets: forgets, accidents: map[place]int{}, fates: map[place][]string{}}
	for range rapid.IntRange(1, 2).Draw(r, "poison messages") {
		w.poison[place{rapid.IntRange(0, 2).Draw(r, "partition"), int64(rapid.IntRange(0, messages-1).Draw(r, "offset"))}] = true
	}
	for range rapid.IntRange(1, 2).Draw(r, "processes") {
		w.processes = append(w.processes, &process{})
	}
	for i := range 3 {
		w.partitions = append(w.partitions, &partition{number: i})
	}
	w.assign()
	return w
}

// settle goes on without accidents, and tells whether all messages have a fate in the end.
func (w *world) settle() bool {
	for range 3000 {
		done := true
		for _, p := range w.partitions {
			done = done && p.next == messages
		}
		if done {
			return true
		}
		for _, p := range w.partitions {
			w.begin(p)
		}
		if process := rapid.SampledFrom(w.processes).Draw(w.T, "process"); len(process.flying) > 0 {
			w.end(process, rapid.IntRange(0, len(process.flying)-1).Draw(w.T, "handler"), false)
		}
	}
	return false
}

// TestModel: whatever happens, the poison messages become dead letters, and the others are handled. None of those is accused, unless
// somebody has killed MaxAlone processes while it ran alone.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(r, false)
		r.Repeat(map[string]func(*rapid.T){
			"begin": func(r *rapid.T) { w.T = r; w.begin(rapid.SampledFrom(w.partitions).Draw(r, "partition")) },
			"end": func(r *rapid.T) {
				w.T = r
				if process := rapid.SampledFrom(w.processes).Draw(r, "process"); len(process.flying) > 0 {
					w.end(process, rapid.IntRange(0, len(process.flying)-1).Draw(r, "handler"), rapid.Bool().Draw(r, "fails"))
				}
			},
			"somebody kills": func(r *rapid.T) {
				w.T = r
				process := rapid.SampledFrom(w.processes).Draw(r, "process")
				if process.alone != nil {
					w.accidents[*process.alone]++
				}
				w.dies(process)
			},
			"rebalance": func(r *rapid.T) { w.T = r; w.assign() },
		})
		w.T = r
		require.True(r, w.settle(), "poison %v", w.poison)
		for _, p := range w.partitions {
			for offset := range int64(messages) {
				at, want := place{p.number, offset}, []string{"done"}
				if w.poison[at] || w.accidents[at] >= MaxAlone && w.fates[at][0] == "dead" {
					want = []string{"dead"}
				}
				require.Equal(r, want, w.fates[at], fmt.Sprint(at))
			}
		}
	})
}

// TestModelForgets is the control: where the group keeps no notes, it never ends.
func TestModelForgets(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) { require.False(r, newWorld(r, true).settle()) })
}
