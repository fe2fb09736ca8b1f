package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox/internal/delayed"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/wake"
	"github.com/millrace-go/millrace/outbox/internal/writer"
	"github.com/millrace-go/millrace/pgtx"
)

// DueMetadata is the metadata entry that tells the consumer of a delayed event when it was due: RFC 3339 in UTC, to the
// microsecond, by the database's clock.
const DueMetadata = "millrace_due_at"

// dueLayout is the format of DueMetadata.
const dueLayout = "2006-01-02T15:04:05.000000Z"

// deliverAfter is the metadata entry that carries the delay to Publish. It is not stored.
const deliverAfter = "_millrace_deliver_after"

// MaxDelay is the longest delay of an event.
const MaxDelay = 10 * 365 * 24 * time.Hour

// SetDeliverAfter makes Publish hold the event back for d. The delay starts when the event is written (with pgtx.Run, at the commit),
// and only the database's clock counts. A relay moves the event into the outbox at its first look after the due time: up to one
// poll interval late, never early. Until then Publisher.Cancel can take it back. Among the events of its key it is ordered
// by its due time, except while an open transaction cancels it. Zero removes the delay. Publish refuses one below 0 or above MaxDelay.
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

// delayOf returns the message's delay in microseconds.
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

// Cancel removes a delayed event, in the transaction that ctx carries. If that transaction is rolled back, the event stays delayed.
// Cancel can also remove an event that the same transaction published. It returns false if no delayed event has this ID: a relay
// has moved it to the outbox or is about to, and it will be delivered. It also returns false for an event that another database
// role has written, unless this role has that role's rights or owns the tables. Without a transaction the error wraps
// ErrNoTransaction. Under repeatable read or serializable isolation Cancel may fail with a serialization failure (40001) if a relay
// moves the event at the same moment.
func (p *Publisher) Cancel(ctx context.Context, eventID string) (bool, error) {
	o, ok := writer.OwnerOf(ctx)
	if !ok {
		return false, fmt.Errorf("cancel event %q: %w", eventID, ErrNoTransaction)
	}
	n, err := p.cancel(ctx, o, eventID)
	if err != nil {
		return false, fmt.Errorf("cancel event %q: %w", eventID, p.writer.Hint(err))
	}
	return n > 0, nil
}

func (p *Publisher) cancel(ctx context.Context, o writer.Owner, eventID string) (n int64, err error) {
	statement := store.Query("delayed_cancel", p.writer.Schema)
	if o.SQL != nil {
		err = o.SQL.QueryRowContext(ctx, statement, eventID).Scan(&n)
		return n, err
	}
	if err := pgtx.Flush(ctx); err != nil { // the event may be one that this transaction has not inserted yet
		return 0, err
	}
	err = o.Pgx.QueryRow(ctx, statement, eventID).Scan(&n)
	return n, err
}

const (
	// maxUntilDue bounds the time that moveDue returns, so that later arithmetic cannot overflow.
	maxUntilDue = time.Hour
	// maxMoveBytes bounds the headers and payloads that one statement moves. A larger event moves alone.
	maxMoveBytes = 16 << 20
	// moreIsDue is the time that moveDue returns when it may have left due events behind.
	moreIsDue = time.Millisecond
)

// moveDue moves delayed events that are due into the outbox, in the order of their due times, and returns the hashes of their keys.
// next is the time until the next call should be made, at most an hour. It is 0 when no event is delayed, or when another relay
// is moving events at this moment. sql is delayed_move.sql. A lower limit lowers the bound of the bytes, too.
func moveDue(ctx context.Context, pool *pgxpool.Pool, sql string, limit int) (moved int, hashes []int64, next time.Duration, err error) {
	var micros *int64
	bytes := max(1, maxMoveBytes*limit/delayed.Most)
	err = pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		// Planned anew each time: a plan from a time without delayed events would later read all of them.
		return tx.QueryRow(ctx, sql, pgx.QueryExecModeExec, limit, bytes).Scan(&moved, &hashes, &micros)
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

// moveDelayed moves delayed events that are due, and wakes the relays that hold their shards.
func (r *Relay) moveDelayed(ctx context.Context, limit int) step.DelayedMoved {
	ctx, cancel := context.WithTimeout(ctx, store.ExchangeTimeout)
	defer cancel()
	moved, hashes, next, err := moveDue(ctx, r.pool, r.delayed, limit)
	if err == nil && moved > 0 {
		r.wakes.Add(hashes)
		_, err = r.pool.Exec(ctx, `select pg_notify($1::text, $2::text)`, store.Channel(r.cfg.Schema), wake.Payload(hashes, false)) // wakes the other relays
	}
	return step.DelayedMoved{Moved: moved, Next: next, Err: err}
}
