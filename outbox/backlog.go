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
	// backlogInterval is how long a publisher relies on its last count of the outbox.
	backlogInterval = time.Second
	// backlogShare makes a publisher rely on a count that found room for at least this many times as long as the count took. A count
	// can take seconds when a long transaction keeps dead rows, and the transaction that publishes pays for it.
	backlogShare = 20
	// backlogPart limits what a publisher admits between two counts to this fraction of the limit: 1/16.
	backlogPart = 16
)

// backlog keeps a publisher from filling an outbox that nobody drains.
type backlog struct {
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

func newBacklog(schema string, limit int) *backlog {
	return &backlog{limit: int64(limit), statement: store.Query("backlog", schema)}
}

// admit reports an error if there is no room for n events. It counts the outbox, in the transaction of the context, when the last
// count is too old, or when this publisher has admitted as many events as that count allowed.
func (b *backlog) admit(ctx context.Context, o owner, n int64, now time.Time) error {
	if b.limit == 0 || n == 0 {
		return nil
	}
	b.mu.Lock()
	last, found, began := b.checked, b.found, b.admitted
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

// look counts the outbox. It admits n events if there is room, and otherwise returns about how many events there are. began is the
// value of b.admitted before the count.
func (b *backlog) look(ctx context.Context, o owner, n, began int64) (found int64, err error) {
	start := time.Now()
	counted, estimate, err := b.count(ctx, o)
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

// count returns the number of events, up to the limit, and an estimate of the total.
func (b *backlog) count(ctx context.Context, o owner) (counted, estimate int64, err error) {
	if o.sql != nil {
		err = o.sql.QueryRowContext(ctx, b.statement, b.limit).Scan(&counted, &estimate)
	} else {
		err = o.pgx.QueryRow(ctx, b.statement, b.limit).Scan(&counted, &estimate)
	}
	return counted, estimate, err
}
