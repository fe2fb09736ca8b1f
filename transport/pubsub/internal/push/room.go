package push

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// room bounds the bodies of all push requests together. It is safe for concurrent use.
type room struct {
	memory *semaphore.Weighted // in bytes
}

func newRoom(bytes int) room { return room{semaphore.NewWeighted(int64(bytes))} }

// take waits for room until latest, until request ends, or until gone is closed. It returns nil when it has reserved size bytes.
func (p room) take(request context.Context, size int64, latest time.Time, gone <-chan struct{}) *answer {
	if p.memory.TryAcquire(size) {
		return nil
	}
	waiting, cancel := context.WithDeadline(request, latest)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		select {
		case <-gone:
			cancel()
		case <-waiting.Done():
		}
	})
	if p.memory.Acquire(waiting, size) == nil {
		return nil
	}
	refused := busyAnswer
	select {
	case <-gone:
		refused = closingAnswer
	default:
	}
	return &refused
}
