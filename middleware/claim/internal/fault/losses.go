package fault

import (
	"sync"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
)

const (
	// forgiven is how often in a row the connection may be lost under an event before a loss is an attempt.
	forgiven = 5
	// maxLosses is of how many events losses are counted. In an outage they are those that were in flight.
	maxLosses = 10_000
)

// Losses counts how often in a row the connection was lost under each event. A database that fails is nobody's fault; but a
// query that crashes its backend, or exceeds the role's transaction_timeout, loses its connection every time, while other
// events commit. It is safe for concurrent use.
type Losses struct {
	mu      sync.Mutex
	commits uint64 // of all events
	of      map[store.Key]*lossesOf
}

type lossesOf struct {
	count   int
	commits uint64 // before the first loss
}

// Lost notes a loss. It returns how many there were in a row when they are the event's own fault, and 0 otherwise.
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

// Ended notes that the connection was there when an attempt ended.
func (l *Losses) Ended(key store.Key, committed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, key)
	if committed {
		l.commits++
	}
}
