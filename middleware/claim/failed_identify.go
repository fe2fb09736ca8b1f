package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// An event without a usable ID is a dead letter under an ID made of all that it carries (syntheticID). When it is replayed its ID
// is looked for again, as if the broker delivered it now: Config.EventID, or what the transport is told of foreign producers,
// may have changed. It never runs under the other ID, because the broker may deliver it again under its own. Where none is
// found it is a dead letter again.

// identify gives the event that was brought back its ID, under which it comes back.
func (c *Claim) identify(ctx context.Context, key Key, msg *message.Message) error {
	former := *sourceOf(ctx).event
	h, err := inbox.EncodeHeaders(msg, transport.OriginFrom(ctx))
	if err != nil {
		return fmt.Errorf("keep event %q: %w", key.EventID, err)
	}
	keeping, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	kept, err := c.postgres.identify(keeping, former, key, h)
	switch {
	case errors.Is(err, ErrContended):
		return c.contended(ctx, key, msg)
	case err != nil:
		transport.DeliveryFrom(ctx).RetryAfter(outageDelay)
		return fmt.Errorf("give event %q of consumer %q its ID %q: %w", former.key.EventID, key.Consumer, key.EventID, err)
	case !kept:
		return c.duplicate(ctx, key)
	}
	c.cfg.Logger.InfoContext(ctx, "replayed event was given its ID",
		slog.String("event_id", key.EventID), slog.String("former_id", former.key.EventID), slog.String("consumer", key.Consumer))
	return c.comeBack(msg, time.Millisecond)
}

// identify reports false, and takes the event away, where one with that ID was processed or is kept already.
func (s *PostgresStore) identify(ctx context.Context, e event, key Key, headers []byte) (kept bool, err error) {
	consumer, err := s.consumer(ctx, key.Consumer)
	if err != nil {
		return false, err
	}
	record, hash := recordID(key), hashedID(key)
	err = pgtx.Run(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		var (
			processed         bool
			id, other         int64
			state, otherState string
		)
		b := &pgx.Batch{}
		b.Queue(s.failed.begin)
		b.Queue(s.failed.lock, lockKey(s.schema, e.key))
		b.Queue(s.failed.lock, lockKey(s.schema, key))
		b.Queue(s.failed.processed, consumer, record, hash).QueryRow(func(row pgx.Row) error { return row.Scan(&processed) })
		b.Queue(s.failed.row, consumer, e.record).QueryRow(optionalRow(&id, &state, nil))
		b.Queue(s.failed.row, consumer, record).QueryRow(optionalRow(&other, &otherState, nil))
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		kept = false // by an attempt before
		switch {
		case id != e.row || state != stateRetrying: // an operator has decided, or another process has handled it
			return nil
		case processed, other != 0 && otherState != stateNacked:
			return pgtx.Queue(ctx, s.failed.done, e.row)
		}
		kept = true
		return errors.Join(
			queueIf(ctx, key.Order != "", s.failed.block, consumer, key.Order),
			pgtx.Queue(ctx, s.sql.done, consumer, record), // the broker's redelivery is absorbed from now on
			pgtx.Queue(ctx, s.failed.identify, e.row, inbox.Printable(key.EventID, maxError), record, key.Order, headers, reasonIdentified),
			pgtx.Queue(ctx, s.failed.record, consumer, record, hash),
		)
	}, pgtx.Isolation(pgx.ReadCommitted))
	return kept, lockTimeout(err)
}

// optionalRow scans a row that need not be there.
func optionalRow(dest ...any) func(row pgx.Row) error {
	return func(row pgx.Row) error {
		if err := row.Scan(dest...); !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return nil
	}
}
