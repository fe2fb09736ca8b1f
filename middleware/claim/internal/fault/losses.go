package fault

import (
	"fmt"
	"sync"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
)

const (
	// forgiven is the number of losses in a row that do not count as attempts.
	forgiven = 5
	// forgivenConflicts is the number of conflicts (wasConflict). Where many transactions write one row, each of them may conflict often.
	forgivenConflicts = 100
	// maxLosses is the maximum number of events in Losses. During an outage, these are the events that were in flight.
	maxLosses = 10_000
)

// Losses counts for each event how often in a row its connection was lost, the database failed (wasOutage), or its transaction conflicted
// with another one (wasConflict). When the database fails, no event is at fault. But a query that crashes its backend, or exceeds the
// role's transaction_timeout, loses its connection every time, while other events commit. Losses is safe for concurrent use.
type Losses struct {
	mu      sync.Mutex
	commits uint64 // of all events
	of      map[store.Key]*lossesOf
}

type lossesOf struct {
	count   int
	commits uint64 // before the first loss
}

// Judge decides about a failure of the event's handler that counts as no attempt, and says how often in a row it has come if it counts after
// all.
func (l *Losses) Judge(key store.Key, f Fault, err error) (Fault, error) {
	switch {
	case WasLost(err):
		if n := l.lost(key, forgiven); n > 0 {
			return Fault{Reason: ReasonLost, Counted: true},
				fmt.Errorf("the connection to the database was lost %d times in a row in this handler, while other events committed: %w", n, err)
		}
	case f.Reason == "" && wasOutage(err):
		if n := l.lost(key, forgiven); n > 0 {
			return Fault{Reason: ReasonError, Counted: true}, fmt.Errorf("the database failed %d times in a row in this handler, while other events committed: %w", n, err)
		}
	case f.Reason == "" && wasConflict(err):
		if n := l.lost(key, forgivenConflicts); n > 0 {
			return Fault{Reason: ReasonError, Counted: true},
				fmt.Errorf("the transaction conflicted with others %d times in a row, while other events committed: %w", n, err)
		}
	default:
		l.Ended(key, false)
	}
	return f, err
}

// lost records a loss. If the event is at fault, it returns the number of losses in a row, otherwise 0. As many as forgiven in a row are
// not the event's fault.
func (l *Losses) lost(key store.Key, forgiven int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.of[key]
	if o == nil {
		if l.of == nil || len(l.of) == maxLosses {
			l.of = map[store.Key]*lossesOf{}
		}
		o = &lossesOf{commits: l.commits}
		l.of[key] = o
	}
	o.count++
	if o.count <= forgiven || l.commits == o.commits {
		return 0
	}
	return o.count
}

// Ended records that an attempt ended with its connection intact.
func (l *Losses) Ended(key store.Key, committed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, key)
	if committed {
		l.commits++
	}
}
