package fault

import (
	"sync"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
)

const (
	// forgiven is the number of losses in a row that do not count as attempts.
	forgiven = 5
	// maxLosses is the maximum number of events in Losses. During an outage, these are the events that were in flight.
	maxLosses = 10_000
)

// Losses counts for each event how often in a row its connection was lost, or the database failed (WasOutage). When the database
// fails, no event is at fault. But a query that crashes its backend, or exceeds the role's transaction_timeout, loses its connection
// every time, while other events commit. Losses is safe for concurrent use.
type Losses struct {
	mu      sync.Mutex
	commits uint64 // of all events
	of      map[store.Key]*lossesOf
}

type lossesOf struct {
	count   int
	commits uint64 // before the first loss
}

// Lost records a loss. If the event is at fault, it returns the number of losses in a row, otherwise 0.
func (l *Losses) Lost(key store.Key) int {
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
