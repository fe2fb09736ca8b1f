package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/wake"
	"github.com/millrace-go/millrace/pgtx"
)

// DueMetadata is the metadata entry that tells the consumer of a delayed event when it was due: RFC 3339 in UTC, to the
// microsecond, by the database's clock.
const DueMetadata = "millrace_due_at"

// dueLayout is what DueMetadata looks like.
const dueLayout = "2006-01-02T15:04:05.000000Z"

// deliverAfter is the metadata entry that carries the delay to Publish, and no further.
const deliverAfter = "_millrace_deliver_after"

// MaxDelay is the longest delay of an event.
const MaxDelay = 10 * 365 * 24 * time.Hour

// SetDeliverAfter makes Publish keep the event back for d, counted from the moment when it is written (at the commit of
// pgtx.Run) by the database's clock, which is the only one that counts. It enters the outbox when it is due, at a relay's
// next look: up to one poll interval later, never earlier. Until then it can be taken back with Publisher.Cancel. Its
// place among the events of its key is that of its due time. Zero removes the delay; Publish refuses one that is
// negative or longer than MaxDelay.
func SetDeliverAfter(msg *message.Message, d time.Duration) {
	if d == 0 {
		delete(msg.Metadata, deliverAfter)
		return
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	msg.Metadata[deliverAfter] = d.String()
}

// delayOf is the message's delay in microseconds.
func delayOf(msg *message.Message) (int64, error) {
	s, ok := msg.Metadata[deliverAfter]
	if !ok {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > MaxDelay {
		return 0, fmt.Errorf("the delay is %s: want 0 to %v", s, MaxDelay)
	}
	return int64((d + time.Microsecond - 1) / time.Microsecond), nil
}

// Cancel takes a delayed event back, in the transaction that ctx carries: if that is rolled back the event waits on. It
// reports false when no event of this ID waits (any more): a relay has moved it to the outbox, or is about to, and it
// will be delivered; and for an event that another database role has written, unless this one has that role's rights or owns
// the tables. An event that the same transaction published can be cancelled. Without a transaction the error wraps
// ErrNoTransaction. Under repeatable read or serializable it may fail with a serialization failure (40001), when a relay
// moves the event at the same moment.
func (p *Publisher) Cancel(ctx context.Context, eventID string) (bool, error) {
	o, ok := ownerOf(ctx)
	if !ok {
		return false, fmt.Errorf("cancel event %q: %w", eventID, ErrNoTransaction)
	}
	n, err := p.inserter.cancel(ctx, o, eventID)
	if err != nil {
		return false, fmt.Errorf("cancel event %q: %w", eventID, p.inserter.hint(err))
	}
	return n > 0, nil
}

func (s inserter) cancel(ctx context.Context, o owner, eventID string) (n int64, err error) {
	if o.sql != nil {
		err = o.sql.QueryRowContext(ctx, s.cancelDelayed, eventID).Scan(&n)
		return n, err
	}
	if err := pgtx.Flush(ctx); err != nil { // it may be one of this transaction's own
		return 0, err
	}
	err = o.pgx.QueryRow(ctx, s.cancelDelayed, eventID).Scan(&n)
	return n, err
}

const (
	// maxUntilDue bounds what moveDue tells, so that clocks and sums stay far from their ends.
	maxUntilDue = time.Hour
	// moreIsDue is what it tells when it may have left events that are due.
	moreIsDue = time.Millisecond
)

// moveDue moves delayed events that are due into the outbox, in the order of their due times, and tells the hashes of
// their keys. next is the time until it should be called again: more than 0, and an hour at most; 0 when nothing waits,
// or another relay is moving events at this moment. The statement is delayed_move.sql.
func moveDue(ctx context.Context, pool *pgxpool.Pool, sql string, limit int) (moved int, hashes []int64, next time.Duration, err error) {
	var micros *int64
	err = pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		// Planned anew each time: a plan that was made while nothing waited would read all that waits later.
		return tx.QueryRow(ctx, sql, pgx.QueryExecModeExec, limit).Scan(&moved, &hashes, &micros)
	}, pgtx.Isolation(pgx.ReadCommitted))
	switch {
	case err != nil:
		return 0, nil, 0, fmt.Errorf("move delayed events that are due: %w", err)
	case moved >= limit:
		next = moreIsDue
	case micros != nil:
		next = max(time.Duration(min(*micros, int64(maxUntilDue/time.Microsecond)))*time.Microsecond, moreIsDue)
	}
	return moved, hashes, next, nil
}

// moveDelayed moves delayed events that are due, and wakes the relays of their shards.
func (r *Relay) moveDelayed(ctx context.Context, limit int) step.DelayedMoved {
	ctx, cancel := context.WithTimeout(ctx, store.ExchangeTimeout)
	defer cancel()
	moved, hashes, next, err := moveDue(ctx, r.pool, r.delayed, limit)
	if err == nil && moved > 0 {
		r.wakes.Add(hashes)
		_, err = r.pool.Exec(ctx, `select pg_notify($1::text, $2::text)`, store.Channel(r.cfg.Schema), wake.Payload(hashes, false)) // for the other relays
	}
	return step.DelayedMoved{Moved: moved, Next: next, Err: err}
}
