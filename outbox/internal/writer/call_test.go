package writer

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// However large they are, the events stay in order, none is lost, and no statement is larger than it must be.
func TestParts(t *testing.T) {
	t.Parallel()
	bytes := make([]byte, 2*maxStatementBytes)
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(0, len(bytes)), 1, 20).Draw(t, "sizes")
		events := make([]Event, len(sizes))
		for i, n := range sizes {
			events[i] = Event{Hash: int64(i), Payload: bytes[:n]}
		}
		next, before := 0, maxStatementBytes
		for part := range parts(events) {
			require.NotEmpty(t, part)
			size := 0
			for _, e := range part {
				require.Equal(t, int64(next), e.Hash)
				next++
				size += len(e.Payload)
			}
			require.True(t, size <= maxStatementBytes || len(part) == 1)
			require.GreaterOrEqual(t, before+len(part[0].Payload), maxStatementBytes, "it would have fitted into the one before")
			before = size
		}
		require.Len(t, events, next)
	})
}
