// Package jobs runs what goes on when the session that began it is gone: one goroutine for each ID, until the console is closed.
package jobs

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Jobs are goroutines, by IDs. They are safe for concurrent use.
type Jobs struct {
	mu     sync.Mutex
	asked  map[int64]int // how often each one that runs was asked for
	closed bool
	work   sync.WaitGroup
	begin  func(do func(context.Context)) // in a goroutine
	end    context.CancelFunc
}

// New returns Jobs, of which none runs.
func New() *Jobs {
	ctx, end := context.WithCancel(context.Background())
	j := &Jobs{asked: map[int64]int{}, end: end}
	j.begin = func(do func(context.Context)) { j.work.Go(func() { do(ctx) }) }
	return j
}

// Start runs do in a goroutine, or once more where one for the ID runs: that one may have seen what was before.
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

// Runs reports whether a goroutine for the ID runs.
func (j *Jobs) Runs(id int64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.asked[id] > 0
}

// Close ends the goroutines and waits for them. Start starts none any more.
func (j *Jobs) Close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.end()
	j.work.Wait()
}

const (
	// triesOfReplay is how often a replay is continued that fails each time, and pauseOfReplay how long after.
	triesOfReplay = 20
	pauseOfReplay = 3 * time.Second
)

// Persist continues a replay until it has ended or was stopped, or the console is closed. The replay stays in the database then,
// and goes on when somebody continues it. What continueReplay returns is for the log.
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
			case time.Since(began) > time.Minute: // it was continued meanwhile
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
