package warm

import (
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWarm(t *testing.T) {
	t.Parallel()
	for range 3 { // the goroutine of one is the next one's, whatever became of it
		require.NoError(t, Do(func() error { return nil }))
		require.ErrorIs(t, Do(func() error { return io.EOF }), io.EOF)
		assert.PanicsWithValue(t, "oops", func() { _ = Do(func() error { panic("oops") }) })
		require.ErrorIs(t, Do(func() error {
			runtime.Goexit()
			return nil
		}), ErrExited)
		require.NoError(t, Do(func() error { return Do(func() error { return nil }) }), "one within another")
	}
}
