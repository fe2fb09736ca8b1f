package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

// Identify gives an event of the table the ID that was found for it. The event is retried under that ID. If an event with that ID
// was processed or is kept already, Identify deletes this one and returns false.
func (s *Postgres) Identify(ctx context.Context, e Event, key Key, headers []byte) (kept bool, err error) {
	consumer, err := s.Consumer(ctx, key.Consumer)
	if err != nil {
		return false, err
	}
	record, hash := key.Record(), key.Hash()
	err = pgtx.Run(ctx, s.Pool, func(ctx context.Context, tx pgx.Tx) error {
		var (
			processed         bool
			id, other         int64
			state, otherState string
		)
		b := &pgx.Batch{}
		b.Queue(s.failed.begin)
		b.Queue(s.failed.lock, e.Key.Lock(s.Schema))
		b.Queue(s.failed.lock, key.Lock(s.Schema))
		b.Queue(s.failed.processed, consumer, record, hash).QueryRow(func(row pgx.Row) error { return row.Scan(&processed) })
		b.Queue(s.failed.row, consumer, e.Record).QueryRow(optionalRow(&id, &state, nil))
		b.Queue(s.failed.row, consumer, record).QueryRow(optionalRow(&other, &otherState, nil))
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		kept = false // a retry of the transaction may find another state
		switch {
		case id != e.Row || state != StateRetrying: // an operator has decided, or another process has handled it
			return nil
		case processed, other != 0 && otherState != StateNacked:
			return pgtx.Queue(ctx, s.failed.done, e.Row)
		}
		kept = true
		return errors.Join(
			queueIf(ctx, key.Order != "", s.failed.block, consumer, key.Order),
			pgtx.Queue(ctx, s.sql.done, consumer, record), // from now on, the broker's redelivery is a duplicate
			pgtx.Queue(ctx, s.failed.identify, e.Row, inbox.Printable(key.EventID, maxError), record, key.Order, headers, reasonIdentified),
			pgtx.Queue(ctx, s.failed.record, consumer, record, hash),
		)
	}, pgtx.Isolation(pgx.ReadCommitted))
	return kept, lockTimeout(err)
}
