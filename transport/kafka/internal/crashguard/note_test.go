package crashguard

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestNote(t *testing.T) {
	t.Parallel()
	for metadata, note := range map[string]Note{
		"":                         {},
		"millrace starts=1 left=7": {Starts: 1, Left: 7},
		"millrace starts=2 left=7 alone=5:1,90000000000:3": {Starts: 2, Left: 7, Alone: map[int64]int{5: 1, 90000000000: 3}},
	} {
		assert.Equal(t, note, Parse(metadata), metadata)
		assert.Equal(t, metadata, note.String())
	}
	// What other clients write is no note, and what is wrong in a note is left out.
	for metadata, note := range map[string]Note{
		"consumer-1": {}, " ": {}, "{\"host\":\"a\"}": {}, "millrace": {}, "millrace starts=1": {}, "millrace left=1": {}, "millrace starts=-1 left=5": {},
		"millrace starts=99999999999999999999 left=5":                                    {},
		"millrace starts=2 left=5 alone=":                                                {Starts: 2, Left: 5, Alone: map[int64]int{}},
		"millrace starts=2 left=5 later=1 alone=5:1,x:2,6,-7:1,8:0,9:1:1,10:-3 and more": {Starts: 2, Left: 5, Alone: map[int64]int{5: 1}},
	} {
		assert.Equal(t, note, Parse(metadata), metadata)
	}
	rapid.Check(t, func(r *rapid.T) {
		metadata := rapid.String().Draw(r, "metadata")
		once := Parse(metadata).String()
		require.Equal(r, once, Parse(once).String())
		again := Parse(prefix + " " + metadata).String()
		require.Equal(r, again, Parse(again).String())
	})
}

// TestNoteFits: brokers take 4,096 bytes.
func TestNoteFits(t *testing.T) {
	t.Parallel()
	g := New(Note{Starts: MaxStarts, Left: 1 << 30}, 1<<30)
	longest := ""
	for i := range int64(1000) {
		note, rejected := g.Try(1<<62 + i)
		require.False(t, rejected)
		if len(note) > len(longest) {
			longest = note
		}
	}
	require.Less(t, len(longest), 2000)
	require.Equal(t, mostAlone, strings.Count(longest, ":"))
}
