package gaps

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
type gapWorld struct {
	last     int64
	open     []*writer
	rows     map[int64]int // committed and not deleted: number → key
	byKey    map[int]*writer
	writers  int
	expected map[int][]int64 // numbers by key, in the order of commits
	got      map[int][]int64

	gaps tracker
	held map[int64]bool // published, and not deleted
}

type writer struct {
	id     string
	key    int
	number int64
}

// read reads with what the memory says, publishes what is new and learns.
func (w *gapWorld) read(t *rapid.T, limit int, ask, rescan bool) {
	view := View{Last: w.last}
	if ask {
		view.Writers = Writers{}
		for _, o := range w.open {
			view.Writers[o.id] = struct{}{}
		}
	}
	from, listed := w.gaps.From(), w.gaps.List()
	if !w.gaps.known || rescan {
		limit += len(w.held)
	}
	if rescan {
		from, listed = 0, nil
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
			view.Numbers = append(view.Numbers, n)
		case n > from || !slices.Contains(listed, n):
			continue
		}
		if !w.held[n] {
			view.Fresh = append(view.Fresh, n)
			w.held[n] = true
			w.got[w.rows[n]] = append(w.got[w.rows[n]], n)
		}
	}
	view.More = above >= limit
	if rescan && view.More {
		view.Writers = nil
	}
	require.False(t, w.gaps.Learn(view), "nothing unexpected turns up")
}

// What memory leaves out of a read is never an event that a later one of its key overtakes, however transactions, reads,
// deletes, rescans and lost memory mix.
func TestGapsKeepTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	check := func(t *rapid.T) {
		w := &gapWorld{
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
				w.read(t, rapid.IntRange(1, 4).Draw(t, "limit"), w.gaps.Curious() && rapid.IntRange(0, 3).Draw(t, "ask") > 0, rapid.IntRange(0, 9).Draw(t, "rescan") == 0)
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
					w.gaps.Forget(0)
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
		require.True(t, w.gaps.known)
		w.read(t, 4, true, false)
		w.read(t, 4, true, false)
		require.Empty(t, w.gaps.List(), "gaps are forgotten once nobody can fill them")
	}
	for range 10 { // 1,000 sequences of actions take a tenth of a second
		rapid.Check(t, check)
	}
}

func TestGapsNoticeAnUnexpectedRow(t *testing.T) {
	t.Parallel()
	m := tracker{}
	assert.False(t, m.Learn(View{Numbers: []int64{5, 6}, Fresh: []int64{5, 6}, Last: 6, Writers: Writers{}}))
	assert.True(t, m.known)
	assert.Equal(t, int64(6), m.From())
	assert.True(t, m.Learn(View{Numbers: []int64{2}, Fresh: []int64{2}}), "the sequence was set back")
	assert.False(t, m.known)
	assert.Zero(t, m.From())
}

func TestGapsHaveABound(t *testing.T) {
	t.Parallel()
	m := tracker{}
	m.Learn(View{Last: 10, Writers: Writers{}})
	m.Learn(View{Numbers: []int64{12}, Fresh: []int64{12}})
	require.Equal(t, []int64{11}, m.List())
	m.Learn(View{Numbers: []int64{12 + maxGaps + 1}, Fresh: []int64{12 + maxGaps + 1}})
	assert.False(t, m.known)
	assert.Equal(t, int64(10), m.From(), "it begins below the first gap")
}

// A prepared transaction no longer shows under the ID that it had.
func TestWritersOfATwoPhaseCommit(t *testing.T) {
	t.Parallel()
	assert.True(t, Writers{"-1/734": {}}.AnyOf(Writers{"4/12": {}}))
	assert.False(t, Writers{"4/13": {}, "5/12": {}}.AnyOf(Writers{"4/12": {}}))
}
