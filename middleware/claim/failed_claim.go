package claim

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

var (
	// errGone means that an event which was brought back is not to be handled any more.
	errGone = errors.New("the event was handled or taken away meanwhile")

	// errChanged means that it is to be brought back again: an operator has edited it since, or it is not its turn.
	errChanged = errors.New("the event was changed meanwhile")
)

// retry claims an event of the table and runs fn, in one transaction that takes the event away and lets the next of its
// key have its turn. It returns ErrContended, errGone or errChanged without calling fn.
func (s *PostgresStore) retry(ctx context.Context, e event, fn func(ctx context.Context) error) error {
	consumer, err := s.consumer(ctx, e.key.Consumer)
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline() // process sets one
	idle := strconv.FormatInt((time.Until(deadline) + idleSlack).Milliseconds(), 10)
	return pgtx.Run(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		var (
			locked, first    bool
			state            string
			headers, payload []byte
		)
		b := &pgx.Batch{}
		b.Queue(s.failed.claim, lockKey(s.schema, e.key), idle).QueryRow(func(row pgx.Row) error { return row.Scan(&locked, nil, nil) })
		b.Queue(s.failed.retry, e.row, consumer).QueryRow(optionalRow(&state, &headers, &payload, &first))
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return s.hint(err)
		}
		switch {
		case !locked:
			return ErrContended
		case state != stateRetrying:
			return errGone
		case !first, !bytes.Equal(headers, e.headers), !bytes.Equal(payload, e.payload):
			return errChanged
		}
		if err := fn(ctx); err != nil {
			return err
		}
		return s.takeAway(ctx, e, consumer)
	}, pgtx.Isolation(pgx.ReadCommitted))
}

// takeAway queues the statements that settle an event of the table. The lock of the key's row comes before those that
// must see what was blocked until then.
func (s *PostgresStore) takeAway(ctx context.Context, e event, consumer int16) error {
	ordered := e.key.Order != ""
	return errors.Join(
		pgtx.Queue(ctx, s.failed.record, consumer, e.record, hashedID(e.key)),
		queueIf(ctx, ordered, s.failed.key, consumer, e.key.Order),
		pgtx.Queue(ctx, s.failed.done, e.row),
		queueIf(ctx, ordered, s.failed.promote, consumer, e.key.Order),
		queueIf(ctx, ordered, s.failed.free, consumer, e.key.Order),
	)
}

func queueIf(ctx context.Context, yes bool, sql string, args ...any) error {
	if !yes {
		return nil
	}
	return pgtx.Queue(ctx, sql, args...)
}
