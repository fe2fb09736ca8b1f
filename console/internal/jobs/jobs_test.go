package jobs

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

// A job that is started while it runs runs once more, because it may have read older data. It never runs twice at once.
func TestAJobThatIsAskedForAgainRunsOnceMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := New()
		turns, begun := make(chan struct{}), 0
		job := func(context.Context) {
			begun++
			<-turns
		}
		j.Start(7, job)
		synctest.Wait()
		j.Start(7, job)
		j.Start(7, job)
		synctest.Wait()
		assert.Equal(t, 1, begun)
		assert.True(t, j.Runs(7))
		assert.False(t, j.Runs(8))
		turns <- struct{}{}
		synctest.Wait()
		assert.Equal(t, 2, begun)
		turns <- struct{}{}
		synctest.Wait()
		assert.False(t, j.Runs(7))
		j.Start(7, job)
		synctest.Wait()
		assert.Equal(t, 3, begun)
		turns <- struct{}{}
		j.Close()
	})
}

func TestCloseEndsJobs(t *testing.T) {
	t.Parallel()
	j := New()
	for id := range int64(3) {
		j.Start(id, func(ctx context.Context) { <-ctx.Done() })
	}
	j.Close()
	j.Close()
	j.Start(9, func(context.Context) { t.Error("it is closed") })
	assert.False(t, j.Runs(9))
}
