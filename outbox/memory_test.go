package outbox

import (
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// world is one shard as PostgreSQL would keep it: numbers are given out before transactions commit, and a transaction has
// the table open from before its first number to its end.
type world struct {
	last     int64
	open     []*writer
	rows     map[int64]int // committed and not deleted: number → key
	byKey    map[int]*writer
	writers  int
	expected map[int][]int64 // numbers by key, in the order of commits
	got      map[int][]int64

	memory memory
	held   map[int64]bool // published, and not deleted
}

type writer struct {
	id     string
	key    int
	number int64
}

// read reads with what the memory says, publishes what is new and learns.
func (w *world) read(t *rapid.T, limit int, ask, rescan bool) {
	view := seen{last: w.last}
	if ask {
		view.writers = writers{}
		for _, o := range w.open {
			view.writers[o.id] = struct{}{}
		}
	}
	from, holes := w.memory.from(), w.memory.holes()
	if !w.memory.known || rescan {
		limit += len(w.held)
	}
	if rescan {
		from, holes = 0, nil
	}
	var numbers []int64
	for n := range w.rows {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	above := 0
	for _, n := range numbers {
		switch {
		case n > from && above < limit:
			above++
		case n > from || !slices.Contains(holes, n):
			continue
		}
		view.numbers = append(view.numbers, n)
		if !w.held[n] {
			view.fresh = append(view.fresh, n)
			w.held[n] = true
			w.got[w.rows[n]] = append(w.got[w.rows[n]], n)
		}
	}
	view.more = above >= limit
	if rescan && view.more {
		view.writers = nil
	}
	require.False(t, w.memory.learn(view), "nothing unexpected turns up")
}

// What memory leaves out of a read is never an event that a later one of its key overtakes, however transactions, reads,
// deletes, rescans and lost memory mix.
func TestMemoryKeepsTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	check := func(t *rapid.T) {
		w := &world{
			rows: map[int64]int{}, byKey: map[int]*writer{}, expected: map[int][]int64{}, got: map[int][]int64{}, held: map[int64]bool{},
		}
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				key := rapid.IntRange(0, 5).Draw(t, "key")
				if w.byKey[key] != nil {
					return // it waits for the aggregate's lock
				}
				w.writers++
				w.last++
				o := &writer{strconv.Itoa(w.writers), key, w.last}
				w.open, w.byKey[key] = append(w.open, o), o
			},
			"end": func(t *rapid.T) {
				if len(w.open) == 0 {
					return
				}
				i := rapid.IntRange(0, len(w.open)-1).Draw(t, "which")
				o := w.open[i]
				w.open = slices.Delete(w.open, i, i+1)
				delete(w.byKey, o.key)
				if rapid.IntRange(0, 3).Draw(t, "commit") > 0 {
					w.rows[o.number] = o.key
					w.expected[o.key] = append(w.expected[o.key], o.number)
				}
			},
			"read": func(t *rapid.T) {
				w.read(t, rapid.IntRange(1, 4).Draw(t, "limit"), w.memory.curious() && rapid.IntRange(0, 3).Draw(t, "ask") > 0, rapid.IntRange(0, 9).Draw(t, "rescan") == 0)
			},
			"delete": func(t *rapid.T) {
				for _, n := range slices.Sorted(maps.Keys(w.held)) {
					if rapid.Bool().Draw(t, "delete") {
						delete(w.rows, n)
						delete(w.held, n)
					}
				}
			},
			"forget": func(t *rapid.T) {
				if rapid.IntRange(0, 19).Draw(t, "forget") == 0 {
					w.memory.forget(0)
				}
			},
			"": func(t *rapid.T) {
				for key, got := range w.got {
					require.Equal(t, w.expected[key][:len(got)], got, "key %d", key)
				}
			},
		})
		w.open = nil
		for range 3 + len(w.rows) {
			w.read(t, 4, true, false)
		}
		for key, expected := range w.expected {
			require.Equal(t, expected, w.got[key], "nothing is left out of key %d", key)
		}
		require.True(t, w.memory.known)
		w.read(t, 4, true, false)
		w.read(t, 4, true, false)
		require.Empty(t, w.memory.holes(), "holes are forgotten once nobody can fill them")
	}
	for range 10 { // 1,000 sequences of actions take a tenth of a second
		rapid.Check(t, check)
	}
}

func TestMemoryNoticesWhatItDidNotExpect(t *testing.T) {
	t.Parallel()
	m := memory{}
	assert.False(t, m.learn(seen{numbers: []int64{5, 6}, fresh: []int64{5, 6}, last: 6, writers: writers{}}))
	assert.True(t, m.known)
	assert.Equal(t, int64(6), m.from())
	assert.True(t, m.learn(seen{numbers: []int64{2}, fresh: []int64{2}}), "the sequence was set back")
	assert.False(t, m.known)
	assert.Zero(t, m.from())
}

func TestMemoryHasABound(t *testing.T) {
	t.Parallel()
	m := memory{}
	m.learn(seen{last: 10, writers: writers{}})
	m.learn(seen{numbers: []int64{12}, fresh: []int64{12}})
	require.Equal(t, []int64{11}, m.holes())
	m.learn(seen{numbers: []int64{12 + maxHoles + 1}, fresh: []int64{12 + maxHoles + 1}})
	assert.False(t, m.known)
	assert.Equal(t, int64(10), m.from(), "it begins below the first hole")
}

// A prepared transaction no longer shows under the ID that it had.
func TestWritersOfATwoPhaseCommit(t *testing.T) {
	t.Parallel()
	assert.True(t, writers{"-1/734": {}}.anyOf(writers{"4/12": {}}))
	assert.False(t, writers{"4/13": {}, "5/12": {}}.anyOf(writers{"4/12": {}}))
}
