package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/store"
)

// ErrBacklog is wrapped by Publish's error when the outbox holds more unpublished events than PublisherConfig.MaxBacklog.
// The transaction is still usable. Refuse the request that led to the event, or try it again later.
var ErrBacklog = errors.New("too many unpublished events in the outbox")

const (
	// backlogInterval is how long a publisher relies on what it found.
	backlogInterval = time.Second
	// backlogShare is how many times as long it relies on it as it took to find out, where there were not too many: dead rows
	// that a long transaction keeps make a look last for seconds, which somebody's transaction pays for.
	backlogShare = 20
)

// backlog keeps a publisher from filling an outbox that nobody drains.
type backlog struct {
	limit     int64
	statement string

	mu      sync.Mutex
	checked time.Time
	rest    time.Duration // until the next look
	found   int64         // 0 when there were not too many
}

func newBacklog(schema string, limit int) *backlog {
	return &backlog{limit: int64(limit), statement: store.Query("backlog", schema)}
}

// check looks, in the transaction of the context, when the last look was too long ago.
func (b *backlog) check(ctx context.Context, o owner, now time.Time) error {
	if b.limit == 0 {
		return nil
	}
	b.mu.Lock()
	last, found := b.checked, b.found
	look := last.IsZero() || now.Sub(last) >= max(b.rest, backlogInterval)
	if look {
		b.checked = now // the others go by the last one meanwhile
	}
	b.mu.Unlock()
	if look {
		var counted int64
		var err error
		began := time.Now()
		if counted, found, err = b.count(ctx, o); err != nil {
			b.mu.Lock()
			b.checked = last
			b.mu.Unlock()
			return fmt.Errorf("check the backlog: %w", err)
		}
		rest := backlogInterval // whoever is refused wants to know soon that it is over
		if counted <= b.limit {
			found, rest = 0, min(backlogShare*time.Since(began), time.Minute)
		}
		b.mu.Lock()
		b.found, b.rest = found, rest
		b.mu.Unlock()
	}
	if found > 0 {
		return fmt.Errorf("%w: about %d, PublisherConfig.MaxBacklog is %d: see that a relay runs and that the broker takes its messages, "+
			"then try again", ErrBacklog, found, b.limit)
	}
	return nil
}

// count returns how many events there are, counted up to just beyond the limit or 0 for not too many, and an estimate.
func (b *backlog) count(ctx context.Context, o owner) (counted, estimate int64, err error) {
	if o.sql != nil {
		err = o.sql.QueryRowContext(ctx, b.statement, b.limit).Scan(&counted, &estimate)
	} else {
		err = o.pgx.QueryRow(ctx, b.statement, b.limit).Scan(&counted, &estimate)
	}
	return counted, estimate, err
}
