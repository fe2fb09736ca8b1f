// Package jobs runs work that outlives the session that started it: one goroutine for each ID, until the console is closed.
package jobs

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Jobs are goroutines with IDs. They are safe for concurrent use.
type Jobs struct {
	mu     sync.Mutex
	asked  map[int64]int // ID of a running goroutine -> number of requests for it
	closed bool
	work   sync.WaitGroup
	begin  func(do func(context.Context)) // runs do in a goroutine
	end    context.CancelFunc
}

// New returns Jobs without goroutines.
func New() *Jobs {
	ctx, end := context.WithCancel(context.Background())
	j := &Jobs{asked: map[int64]int{}, end: end}
	j.begin = func(do func(context.Context)) { j.work.Go(func() { do(ctx) }) }
	return j
}

// Start runs do in a goroutine. If a goroutine for the ID runs already, do runs once more after it, because it may have read
// older data.
func (j *Jobs) Start(id int64, do func(context.Context)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return
	}
	if j.asked[id]++; j.asked[id] > 1 {
		return
	}
	j.begin(func(ctx context.Context) {
		for done := 0; ; {
			j.mu.Lock()
			if j.asked[id] == done {
				delete(j.asked, id)
				j.mu.Unlock()
				return
			}
			done = j.asked[id]
			j.mu.Unlock()
			do(ctx)
		}
	})
}

// Runs reports whether a goroutine for the ID is running.
func (j *Jobs) Runs(id int64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.asked[id] > 0
}

// Close ends the goroutines and waits for them. After that Start does nothing.
func (j *Jobs) Close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.end()
	j.work.Wait()
}

const (
	// triesOfReplay bounds how often a failing replay is continued, and pauseOfReplay is the pause between attempts.
	triesOfReplay = 20
	pauseOfReplay = 3 * time.Second
)

// Persist continues a replay until it ends, is stopped, or the console is closed. In the last case the replay stays in the
// database until someone continues it. continueReplay returns attributes for the log.
func (j *Jobs) Persist(log *slog.Logger, what string, id int64, gone error, continueReplay func(context.Context) ([]any, error)) {
	log = log.With(what, id)
	j.Start(id, func(ctx context.Context) {
		for tries := 1; ; tries++ {
			began := time.Now()
			ended, err := continueReplay(ctx)
			switch {
			case err == nil:
				log.InfoContext(ctx, "replay ended", ended...)
				return
			case ctx.Err() != nil || errors.Is(err, gone):
				return
			case time.Since(began) > time.Minute: // it made progress
				tries = 1
			case tries == triesOfReplay:
				log.ErrorContext(ctx, "replay is not continued any more", "error", err)
				return
			}
			log.WarnContext(ctx, "replay cannot be continued now", "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(pauseOfReplay):
			}
		}
	})
}
