package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/store"
)

// ErrBacklog is wrapped by Publish's error when the outbox holds PublisherConfig.MaxBacklog unpublished events, or more. The
// transaction is still usable. Refuse the request that led to the event, or try it again later.
var ErrBacklog = errors.New("too many unpublished events in the outbox")

const (
	// backlogInterval is how long a publisher relies on what it found.
	backlogInterval = time.Second
	// backlogShare is how many times as long it relies on it as it took to find out, where there were not too many: dead rows
	// that a long transaction keeps make a look last for seconds, which somebody's transaction pays for.
	backlogShare = 20
	// backlogPart is the part of the limit that a publisher lets through, at most, before it looks again.
	backlogPart = 16
)

// backlog keeps a publisher from filling an outbox that nobody drains.
type backlog struct {
	limit     int64
	statement string

	mu       sync.Mutex
	checked  time.Time     // when the last look by time began
	rest     time.Duration // until the next one
	found    int64         // 0 when there were not too many
	admitted int64         // events that this publisher let through
	began    int64         // of them, when the last look began that has an answer
	until    int64         // of them, when the next look is due
}

func newBacklog(schema string, limit int) *backlog {
	return &backlog{limit: int64(limit), statement: store.Query("backlog", schema)}
}

// admit lets n events through, or says why not. It looks, in the transaction of the context, when the last look was too long
// ago, or when this publisher has let through what that look left room for.
func (b *backlog) admit(ctx context.Context, o owner, n int64, now time.Time) error {
	if b.limit == 0 || n == 0 {
		return nil
	}
	b.mu.Lock()
	last, found, began := b.checked, b.found, b.admitted
	stale := last.IsZero() || now.Sub(last) >= max(b.rest, backlogInterval)
	if stale {
		b.checked = now // the others go by the last one meanwhile
	}
	look := stale || found == 0 && b.admitted >= b.until
	if !look && found == 0 {
		b.admitted += n
	}
	b.mu.Unlock()
	if look {
		var err error
		if found, err = b.look(ctx, o, n, began); err != nil {
			b.mu.Lock()
			b.checked = last
			b.mu.Unlock()
			return fmt.Errorf("check the backlog: %w", err)
		}
	}
	if found > 0 {
		return fmt.Errorf("%w: about %d, PublisherConfig.MaxBacklog is %d: see that a relay runs and that the broker takes its messages, "+
			"then try again", ErrBacklog, found, b.limit)
	}
	return nil
}

// look asks the database, lets n events through if there is room, and else returns about how many there are. began is what
// this publisher had let through before.
func (b *backlog) look(ctx context.Context, o owner, n, began int64) (found int64, err error) {
	start := time.Now()
	counted, estimate, err := b.count(ctx, o)
	if err != nil {
		return 0, err
	}
	room := b.limit - counted
	rest := min(backlogShare*time.Since(start), time.Minute)
	if room <= 0 {
		found, rest = estimate, backlogInterval // whoever is refused wants to know soon that it is over
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if began >= b.began { // else a later look was quicker
		b.found, b.rest, b.began = found, rest, began
		b.until = began + min(room, max(b.limit/backlogPart, 1))
	}
	if found == 0 {
		b.admitted += n
	}
	return found, nil
}

// count returns how many events there are, up to the limit, and an estimate.
func (b *backlog) count(ctx context.Context, o owner) (counted, estimate int64, err error) {
	if o.sql != nil {
		err = o.sql.QueryRowContext(ctx, b.statement, b.limit).Scan(&counted, &estimate)
	} else {
		err = o.pgx.QueryRow(ctx, b.statement, b.limit).Scan(&counted, &estimate)
	}
	return counted, estimate, err
}
