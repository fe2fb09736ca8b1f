// Package jobs runs work that outlives the session that started it: one goroutine for each ID, until the console is closed.
package jobs

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
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
	// pauseOfReplay is the pause before a failed replay is continued. It doubles with each attempt, up to longestPause.
	pauseOfReplay = time.Second
	longestPause  = 30 * time.Second
	// triesOfReplay is the number of attempts with a refused statement (isWrong) after which the replay is given up.
	triesOfReplay = 20
)

// Persist continues a replay until it ends, is stopped, or the console is closed. In the last case the replay stays in the
// database until someone continues it. An outage of the database ends no replay, however long it is. continueReplay returns attributes
// for the log.
func (j *Jobs) Persist(log *slog.Logger, what string, id int64, gone error, continueReplay func(context.Context) ([]any, error)) {
	log = log.With(what, id)
	j.Start(id, func(ctx context.Context) {
		for wrong, pause := 0, pauseOfReplay; ; pause = min(2*pause, longestPause) {
			began := time.Now()
			ended, err := continueReplay(ctx)
			switch {
			case err == nil:
				log.InfoContext(ctx, "replay ended", ended...)
				return
			case ctx.Err() != nil || errors.Is(err, gone):
				return
			case time.Since(began) > time.Minute: // it made progress
				wrong, pause = 0, pauseOfReplay
			case isWrong(err):
				wrong++
			}
			if wrong == triesOfReplay {
				log.ErrorContext(ctx, "replay is not continued any more", "error", err)
				return
			}
			log.WarnContext(ctx, "replay cannot be continued now", "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	})
}

// isWrong reports whether the server has refused a statement because of its data (class 22), or its syntax, tables or rights (class 42).
func isWrong(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(refused.Code, "22") || strings.HasPrefix(refused.Code, "42"))
}
