package crashguard

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// found starts processes that each die of the poison message as soon as it runs, until it is rejected, and returns their number. A
// process hands out so many messages at once, and commits nothing before it dies, but what runs alone.
func found(t *testing.T, poison int64, together int, keep func(string) string) int {
	t.Helper()
	kept, at := "", int64(0)
	for deaths := range 100 {
		g := New(Parse(kept), together)
		for {
			if !g.Suspicious() {
				note, commit := g.Begin()
				if commit {
					kept = keep(note)
				}
				if poison < at+int64(together) {
					break // it dies
				}
				at++
				kept = keep(g.Done(1, at))
				continue
			}
			note, rejected := g.Try(at)
			if rejected {
				require.Equal(t, poison, at)
				return deaths
			}
			if kept = keep(note); at == poison {
				break // it dies
			}
			g.Survived()
			at++
			kept = keep(g.Done(1, at))
		}
	}
	return -1
}

func TestGuardFindsPoison(t *testing.T) {
	t.Parallel()
	same := func(note string) string { return note }
	require.Equal(t, MaxStarts+MaxAlone, found(t, 0, 10, same))
	require.Equal(t, MaxStarts+MaxAlone, found(t, 7, 10, same), "it is among others")
	require.Equal(t, 1+MaxStarts+MaxAlone, found(t, 500, 10, same), "the first one began long before")
	require.Equal(t, -1, found(t, 7, 10, func(string) string { return "" }), "the group forgets")
	require.Equal(t, -1, found(t, 7, 10, func(string) string { return "another client's" }))
}

// The notes of one assignment, step by step.
func TestGuard(t *testing.T) {
	t.Parallel()
	give := func(g *Guard) string {
		note, _ := g.Release()
		return note
	}
	begin := func(read string) (*Guard, string) {
		g := New(Parse(read), 10)
		note, commit := g.Begin()
		require.True(t, commit)
		_, commit = g.Begin()
		require.False(t, commit, "once")
		return g, note
	}
	t.Run("a start is forgotten when it is given back", func(t *testing.T) {
		g, note := begin("")
		require.Equal(t, "millrace starts=1 left=10", note)
		require.Equal(t, note, g.Done(3, 3))
		require.Empty(t, give(g))
		require.Empty(t, g.Done(1, 4), "the end of a slow handler")
	})
	t.Run("a start before it is kept, with what may have been in flight in it", func(t *testing.T) {
		g, note := begin("millrace starts=1 left=10")
		require.Equal(t, "millrace starts=2 left=10", note)
		g.Done(3, 3)
		require.Equal(t, "millrace starts=1 left=7", give(g))
	})
	t.Run("nothing is to be given back before the first message", func(t *testing.T) {
		for _, read := range []string{"", "millrace starts=1 left=10", "millrace starts=4 left=10 alone=5:2"} {
			_, commit := New(Parse(read), 10).Release()
			require.False(t, commit)
		}
	})
	t.Run("a start is forgotten when all is done that may have been in flight", func(t *testing.T) {
		g, _ := begin("millrace starts=1 left=10")
		require.NotEmpty(t, g.Done(9, 9))
		require.Empty(t, g.Done(1, 10))
		_, commit := g.Release()
		require.False(t, commit)
	})
	t.Run("no later than at the end that the partition had", func(t *testing.T) {
		g, _ := begin("")
		g.Until(4)
		g.Until(400)
		require.NotEmpty(t, g.Done(3, 3))
		require.Empty(t, g.Done(1, 4))
	})
	t.Run("messages run alone until then", func(t *testing.T) {
		g := New(Parse("millrace starts=4 left=2"), 10)
		for range 2 {
			require.True(t, g.Suspicious())
			g.Try(0)
			g.Survived()
			g.Done(1, 1)
		}
		require.False(t, g.Suspicious())
		_, commit := g.Begin()
		require.False(t, commit, "as in a process that has long begun")
		require.Empty(t, g.Note())
	})
	t.Run("a message that is withdrawn, given back or survived is not counted", func(t *testing.T) {
		const read = "millrace starts=4 left=10 alone=5:2"
		g := New(Parse(read), 10)
		note, _ := g.Try(5)
		require.Equal(t, "millrace starts=4 left=10 alone=5:3", note)
		g.Withdrawn()
		require.Equal(t, read, g.Note())
		g.Try(5)
		require.Equal(t, read, give(g), "its handler is slow")
		g = New(Parse(read), 10)
		g.Try(5)
		g.Survived()
		require.Equal(t, "millrace starts=4 left=10", g.Note())
		note, _ = g.Try(5)
		require.Equal(t, "millrace starts=4 left=10 alone=5:1", note)
	})
	t.Run("a message of which others have died stays known while another one runs", func(t *testing.T) {
		g := New(Parse("millrace starts=4 left=10 alone=5:3"), 10)
		note, _ := g.Try(3)
		require.Equal(t, "millrace starts=4 left=10 alone=3:1,5:3", note)
		g.Survived()
		_, rejected := g.Try(5)
		require.True(t, rejected)
		require.Equal(t, "millrace starts=4 left=4", g.Done(6, 6))
	})
}
