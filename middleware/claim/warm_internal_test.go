package claim

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWarm(t *testing.T) {
	t.Parallel()
	for range 3 { // the goroutine of one is the next one's, whatever became of it
		require.NoError(t, warm(func() error { return nil }))
		require.ErrorIs(t, warm(func() error { return ErrContended }), ErrContended)
		assert.PanicsWithValue(t, "oops", func() { _ = warm(func() error { panic("oops") }) })
		require.ErrorIs(t, warm(func() error {
			runtime.Goexit()
			return nil
		}), errExited)
		require.NoError(t, warm(func() error { return warm(func() error { return nil }) }), "one within another")
	}
}
