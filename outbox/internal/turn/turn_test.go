package turn

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// One is served at a time. Those that wait meanwhile are served together, but for those that may not be.
func TestLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLine[string, string](func(first, other string) bool { return first != "alone" && other != "alone" })
		goOn := make(chan struct{})
		var served []int // how many at once
		do := func(ctx context.Context, wish string) (string, error) {
			return l.Do(ctx, wish, func(group []*Caller[string, string]) {
				<-goOn
				served = append(served, len(group))
				for _, c := range group {
					c.Answer("got " + c.Wish)
				}
			})
		}
		var calls sync.WaitGroup
		for _, wish := range []string{"first", "a", "b", "alone"} {
			calls.Go(func() {
				got, err := do(t.Context(), wish)
				require.NoError(t, err)
				require.Equal(t, "got "+wish, got)
			})
			synctest.Wait()
		}
		require.Equal(t, 3, l.Waiting())
		ctx, cancel := context.WithCancel(t.Context())
		calls.Go(func() {
			_, err := do(ctx, "impatient")
			require.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.Equal(t, 3, l.Waiting())
		close(goOn)
		calls.Wait()
		require.ElementsMatch(t, []int{1, 2, 1}, served)
		l.Close()
		_, err := do(ctx, "late")
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, l.Waiting())
	})
}
