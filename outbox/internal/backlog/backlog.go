// Package backlog keeps publishers from filling an outbox that nobody drains.
package backlog

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/store"
)

const (
	// backlogInterval is how long a publisher relies on its last count of the outbox.
	backlogInterval = time.Second
	// backlogShare makes a publisher rely on a count that found room for at least this many times as long as the count took. A count
	// can take seconds when a long transaction keeps dead rows, and the transaction that publishes pays for it.
	backlogShare = 20
	// backlogPart limits what a publisher admits between two counts to this fraction of the limit: 1/16.
	backlogPart = 16
)

// Backlog estimates how full an outbox is. It is safe for concurrent use.
type Backlog struct {
	limit     int64
	statement string

	mu       sync.Mutex
	checked  time.Time     // when the last count that was due by time began
	rest     time.Duration // how long to rely on that count
	found    int64         // estimated events when the last count found no room, else 0
	admitted int64         // events that this publisher has admitted
	began    int64         // value of admitted when the newest finished count began
	until    int64         // value of admitted at which the next count is due
}

// Count runs the statement, whose argument is the limit. It returns the number of events, up to the limit, and an estimate of the total.
type Count func(ctx context.Context, statement string, limit int64) (counted, estimate int64, err error)

// New returns a Backlog that allows that many events; 0: any number.
func New(schema string, limit int) *Backlog {
	return &Backlog{limit: int64(limit), statement: store.Query("backlog", schema)}
}

// Admit returns about how many events there are if there is no room for n more, and otherwise 0. It counts the outbox when the last
// count is too old, or when this publisher has admitted as many events as that count allowed.
func (b *Backlog) Admit(ctx context.Context, count Count, n int64, now time.Time) (found int64, err error) {
	if b.limit == 0 || n == 0 {
		return 0, nil
	}
	b.mu.Lock()
	last, began := b.checked, b.admitted
	found = b.found
	stale := last.IsZero() || now.Sub(last) >= max(b.rest, backlogInterval)
	if stale {
		b.checked = now // concurrent calls rely on the previous count
	}
	look := stale || found == 0 && b.admitted >= b.until
	if !look && found == 0 {
		b.admitted += n
	}
	b.mu.Unlock()
	if look {
		if found, err = b.look(ctx, count, n, began); err != nil {
			b.mu.Lock()
			b.checked = last
			b.mu.Unlock()
			return 0, fmt.Errorf("check the backlog: %w", err)
		}
	}
	return found, nil
}

// look counts the outbox. It admits n events if there is room, and otherwise returns about how many events there are. began is the
// value of b.admitted before the count.
func (b *Backlog) look(ctx context.Context, count Count, n, began int64) (found int64, err error) {
	start := time.Now()
	counted, estimate, err := count(ctx, b.statement, b.limit)
	if err != nil {
		return 0, err
	}
	room := b.limit - counted
	rest := min(backlogShare*time.Since(start), time.Minute)
	if room <= 0 {
		found, rest = estimate, backlogInterval // a caller that is refused should learn soon that there is room again
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if began >= b.began { // else a count that began later has already finished
		b.found, b.rest, b.began = found, rest, began
		b.until = began + min(room, max(b.limit/backlogPart, 1))
	}
	if found == 0 {
		b.admitted += n
	}
	return found, nil
}
