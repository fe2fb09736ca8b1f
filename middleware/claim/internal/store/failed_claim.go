package store

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
	// ErrGone means that an event of the table is not to be handled any more.
	ErrGone = errors.New("the event was handled or taken away meanwhile")

	// ErrChanged means that the event must be retried again: an operator has edited it, or an earlier event of its key is first.
	ErrChanged = errors.New("the event was changed meanwhile")
)

// Retry claims an event of the table and runs fn in one transaction, which also deletes the event's row and unblocks the next event
// of its key. It returns ErrContended, ErrGone or ErrChanged without calling fn.
func (s *Postgres) Retry(ctx context.Context, e Event, fn func(ctx context.Context) error) error {
	consumer, err := s.Consumer(ctx, e.Key.Consumer)
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline() // the caller sets one
	idle := strconv.FormatInt((time.Until(deadline) + IdleSlack).Milliseconds(), 10)
	return pgtx.Run(ctx, s.Pool, func(ctx context.Context, tx pgx.Tx) error {
		var (
			locked, first    bool
			state            string
			headers, payload []byte
		)
		b := &pgx.Batch{}
		b.Queue(s.failed.claim, e.Key.Lock(s.Schema), idle).QueryRow(func(row pgx.Row) error { return row.Scan(&locked, nil, nil) })
		b.Queue(s.failed.retry, e.Row, consumer).QueryRow(optionalRow(&state, &headers, &payload, &first))
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return s.Hint(err)
		}
		switch {
		case !locked:
			return ErrContended
		case state != StateRetrying:
			return ErrGone
		case !first, !bytes.Equal(headers, e.Headers), !bytes.Equal(payload, e.Payload):
			return ErrChanged
		}
		if err := fn(ctx); err != nil {
			return err
		}
		return s.takeAway(ctx, e, consumer)
	}, pgtx.Isolation(pgx.ReadCommitted))
}

// takeAway queues the statements that settle an event of the table. The statement that locks the key's row comes before those that
// must see the events blocked until then.
func (s *Postgres) takeAway(ctx context.Context, e Event, consumer int16) error {
	ordered := e.Key.Order != ""
	return errors.Join(
		pgtx.Queue(ctx, s.failed.record, consumer, e.Record, e.Key.Hash()),
		queueIf(ctx, ordered, s.failed.key, consumer, e.Key.Order),
		pgtx.Queue(ctx, s.failed.done, e.Row),
		queueIf(ctx, ordered, s.failed.promote, consumer, e.Key.Order),
		queueIf(ctx, ordered, s.failed.free, consumer, e.Key.Order),
	)
}
