package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
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

var (
	errGone = errors.New("no such replay")
	silent  = slog.New(slog.DiscardHandler)
)

// A database that was away for more than a minute ended each replay that ran, for good.
func TestAnOutageEndsNoReplay(t *testing.T) {
	t.Parallel()
	for _, outage := range []error{errors.New("connection refused"), fmt.Errorf("begin: %w", &pgconn.PgError{Code: "57P03"})} {
		synctest.Test(t, func(t *testing.T) {
			j, began := New(), time.Now()
			back := began.Add(3 * time.Hour)
			var tries atomic.Int32
			var ended time.Time
			j.Persist(silent, "replay", 7, errGone, func(context.Context) ([]any, error) {
				if tries.Add(1); time.Now().Before(back) {
					return nil, outage
				}
				ended = time.Now()
				return nil, nil
			})
			time.Sleep(90 * time.Second)
			assert.True(t, j.Runs(7))
			assert.Less(t, tries.Load(), int32(10), "the pauses grow")
			time.Sleep(4 * time.Hour)
			assert.False(t, j.Runs(7))
			assert.WithinRange(t, ended, back, back.Add(30*time.Second))
			j.Close()
		})
	}
}

// A replay whose statements the server refuses again and again is given up, and so is one that is gone.
func TestAReplayThatCannotSucceedEnds(t *testing.T) {
	t.Parallel()
	for says, err := range map[string]error{"no table": fmt.Errorf("step: %w", &pgconn.PgError{Code: "42P01"}), "bad data": &pgconn.PgError{Code: "22P02"}, "gone": fmt.Errorf("%w: 7", errGone)} {
		synctest.Test(t, func(t *testing.T) {
			j, tries := New(), 0
			j.Persist(silent, "replay", 7, errGone, func(context.Context) ([]any, error) { tries++; return nil, err })
			time.Sleep(time.Hour)
			assert.False(t, j.Runs(7), says)
			assert.Equal(t, map[bool]int{true: 1, false: triesOfReplay}[says == "gone"], tries, says)
			j.Close()
		})
	}
}
