package main

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/outbox"
)

const (
	// pacePerSecond is a service's load, not a benchmark's: it leaves the machine idle.
	pacePerSecond = 500
	// perWorker is how many events a second each of the workers commits, in turn, so that one slow commit does not hold
	// up the next event: a commit may take 8 ms.
	perWorker   = 125
	paceWorkers = pacePerSecond / perWorker
)

// pace calls commit for new events, so many a second and evenly, for that long. It passes on when each was committed.
func pace(ctx context.Context, lasts time.Duration, perSecond int, commit func(context.Context, int, event) error, committed func(id string, at time.Time)) error {
	stock := newBacklog(4 * keys) // so that the keys are spread as in a backlog
	due := make(chan int)
	group, ctx := errgroup.WithContext(ctx)
	for range max(1, perSecond/perWorker) {
		group.Go(func() error {
			for n := range due {
				e := stock[n%len(stock)]
				e.id = outbox.NewID()
				if err := commit(ctx, n, e); err != nil {
					return err
				}
				committed(e.id, time.Now())
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(due)
		began := time.Now()
		for n := range int(lasts.Seconds() * float64(perSecond)) {
			// By the schedule and not by the last event, so that a late one is not followed by a slower pace.
			wait := time.NewTimer(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(perSecond))))
			select {
			case <-wait.C:
			case <-ctx.Done():
				wait.Stop()
				return ctx.Err()
			}
			select {
			case due <- n:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	return group.Wait()
}

// times notes when something first happened to each event. It is safe for concurrent use.
type times struct {
	mu   sync.Mutex
	byID map[string]int64 // nanoseconds of Unix time
	all  []string         // in the order of their coming
}

func newTimes() *times { return &times{byID: map[string]int64{}} }

func (t *times) note(id string, at int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, again := t.byID[id]; !again {
		t.byID[id] = at
		t.all = append(t.all, id)
	}
}

func (t *times) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byID)
}
