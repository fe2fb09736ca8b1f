package deferral

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// topic is a topic's rows in a table, with a shard that holds some.
type topic struct {
	Deferral
	count int
	rows  []string       // keys; the number of a row is its place, from 1 on
	held  map[int64]bool // or were held
	last  map[string]int64
	room  int // how many more may be held
	above int64
	seen  int64 // the highest number that was ever read
}

// take holds a row. No other one of its key may be left out before it.
func (w *topic) take(t *rapid.T, seq int64) {
	key := w.rows[seq-1]
	require.Less(t, w.last[key], seq, "row %d of key %s is held after row %d", seq, key, w.last[key])
	w.held[seq], w.last[key] = true, seq
	w.room--
}

// Rows of a key are held in order, whatever the quota, and each once. Of a key with a deferred row, Precedes says so. When there is room,
// reads and scans end the deferral.
func TestDeferredRowsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &topic{held: map[int64]bool{}, last: map[string]int64{}}
		w.Deferral = New(&w.count)
		read := func(limit int) {
			for ; limit > 0 && w.above < int64(len(w.rows)); limit-- {
				w.above++
				w.seen = max(w.seen, w.above)
				if !w.held[w.above] && w.Admit(w.above, w.rows[w.above-1], w.room <= 0, NoScan) {
					w.take(t, w.above)
				}
			}
		}
		drain := func(limit int) {
			if !w.Any() || w.From() > w.above {
				return
			}
			seq, last := w.From(), int64(0)
			for n := 0; seq <= w.above; seq++ {
				if w.held[seq] {
					continue
				}
				w.Take(seq)
				w.take(t, seq)
				if n++; n == limit {
					last = seq
					break
				}
			}
			w.Drained(w.above, last)
		}
		scan := func(above int64) {
			for seq := above + 1; seq <= int64(len(w.rows)); seq++ {
				if !w.held[seq] && w.Admit(seq, w.rows[seq-1], w.room <= 0, above) {
					w.take(t, seq)
				}
			}
			w.above, w.seen = int64(len(w.rows)), int64(len(w.rows))
			w.Scanned(above)
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				for range rapid.IntRange(1, 10).Draw(t, "rows") {
					w.rows = append(w.rows, fmt.Sprint("k", rapid.IntRange(0, 3).Draw(t, "key")))
				}
			case 1:
				w.room = rapid.IntRange(0, 10).Draw(t, "room")
			case 2:
				read(rapid.IntRange(1, 10).Draw(t, "limit"))
			case 3:
				drain(rapid.IntRange(1, 10).Draw(t, "limit"))
			case 4: // another server answers: rows are read again
				w.above = int64(rapid.IntRange(0, int(w.above)).Draw(t, "above"))
			default:
				scan(int64(rapid.IntRange(0, int(w.above)).Draw(t, "scan")))
			}
			require.Equal(t, w.Any(), w.count == 1)
			require.False(t, w.Any() && w.from > w.to, "none is deferred")
			for seq := int64(1); seq <= w.seen; seq++ {
				require.True(t, w.held[seq] || w.Precedes(Hash(w.rows[seq-1]), seq+1), "nobody knows that row %d is deferred", seq)
			}
		}
		w.room = 1 << 20
		read(1 << 20)
		for range len(w.rows) + 1 {
			drain(3)
		}
		scan(0) // of two scans, the second one is not preceded by a row that was deferred
		scan(0)
		require.False(t, w.Any())
		require.Len(t, w.held, len(w.rows), "rows are left out")
	})
}

// Beyond a number of keys that are remembered, every key counts as deferred.
func TestTooManyKeysCountAsDeferred(t *testing.T) {
	t.Parallel()
	d := New(new(int))
	for i := range int64(maxKeys + 1) {
		require.False(t, d.Admit(i+1, fmt.Sprint(i), true, NoScan))
	}
	require.True(t, d.Precedes(Hash("another"), maxKeys+5))
	d.Drained(maxKeys+1, 0)
	require.False(t, d.Precedes(Hash("another"), maxKeys+5))
}
