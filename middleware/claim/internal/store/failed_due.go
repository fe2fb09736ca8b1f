package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// Leased is an event of the table that this process has leased.
type Leased struct {
	Event
	Attempts int
	Until    time.Time // end of the lease by the server's clock
	Former   string    // its topic before the lease
}

// Outlook is what a poll of the table found out for a consumer.
type Outlook struct {
	Next time.Duration // until the next event is due; negative: no event waits
	Dead bool          // there are dead letters of any consumer, which an operator may replay
}

// Lease leases up to n due events of a consumer's topic, and returns them in order. It also takes events of other topics that have
// been due for longer than orphaned; 0: never. With n = 0 it only returns the outlook.
func (s *Postgres) Lease(ctx context.Context, consumer, topic string, n int, hold, orphaned time.Duration, without []int64) (due []Leased, o Outlook, err error) {
	ctx, cancel := context.WithTimeout(ctx, KeepTimeout)
	defer cancel()
	var ms, orphan *int64
	if orphaned > 0 {
		after := orphaned.Milliseconds()
		orphan = &after
	}
	b := &pgx.Batch{}
	if n > 0 {
		b.Queue(s.failed.lease, consumer, topic, n, hold.Milliseconds(), without, orphan).Query(func(rows pgx.Rows) error {
			due, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l Leased, err error) {
				l.Key.Consumer, l.Topic = consumer, topic
				err = row.Scan(&l.Row, &l.Record, &l.Key.EventID, &l.Key.Order, &l.Attempts, &l.Headers, &l.Payload, &l.Until, &l.Malformed, &l.Former)
				return l, err
			})
			return err
		})
	}
	b.Queue(s.failed.next, consumer).QueryRow(func(row pgx.Row) error { return row.Scan(&ms, &o.Dead) })
	if err := s.Pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, Outlook{}, s.Hint(err)
	}
	slices.SortFunc(due, func(a, b Leased) int { return cmp.Compare(a.Row, b.Row) })
	o.Next = -1
	if ms != nil {
		o.Next = max(time.Duration(*ms)*time.Millisecond, 0)
	}
	return due, o, nil
}

// GiveBack ends the lease of an event, which is due after a delay.
func (s *Postgres) GiveBack(ctx context.Context, l Leased, delay time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), KeepTimeout) // also while the service stops
	defer cancel()
	_, err := s.Pool.Exec(ctx, s.failed.back, l.Row, l.Until, delay.Milliseconds())
	return err
}

// Unstick repairs keys whose first event was removed by an operator.
func (s *Postgres) Unstick(ctx context.Context, consumer string) error {
	ctx, cancel := context.WithTimeout(ctx, KeepTimeout)
	defer cancel()
	type stuck struct {
		Consumer int16
		Key      string
	}
	rows, err := s.Pool.Query(ctx, s.failed.stuck, consumer)
	if err != nil {
		return s.Hint(err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stuck])
	if err != nil {
		return s.Hint(err)
	}
	for _, k := range keys {
		err := pgtx.Run(ctx, s.Pool, func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			for _, sql := range []string{s.failed.key, s.failed.promote, s.failed.free} {
				b.Queue(sql, k.Consumer, k.Key)
			}
			return tx.SendBatch(ctx, b).Close()
		}, pgtx.Isolation(pgx.ReadCommitted))
		if err != nil {
			return err
		}
	}
	return nil
}
