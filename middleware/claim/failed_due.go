package claim

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// leased is an event of the table that this process has in hand until a time.
type leased struct {
	event
	attempts int
	until    time.Time // by the server's clock
	former   string    // its topic before
}

// outlook is what a look at the table told of a consumer.
type outlook struct {
	next time.Duration // until the next event is due; less than 0: none waits
	dead bool          // there are dead letters, which an operator may send back
}

// lease takes up to so many events of a consumer's topic that are due, and returns them in order. Those of other topics it takes when
// they have been due for so long as orphaned says; 0: never. With n = 0 it takes none.
func (s *PostgresStore) lease(ctx context.Context, consumer, topic string, n int, hold, orphaned time.Duration, without []int64) (due []leased, o outlook, err error) {
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	var ms, orphan *int64
	if orphaned > 0 {
		after := orphaned.Milliseconds()
		orphan = &after
	}
	b := &pgx.Batch{}
	if n > 0 {
		b.Queue(s.failed.lease, consumer, topic, n, hold.Milliseconds(), without, orphan).Query(func(rows pgx.Rows) error {
			due, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l leased, err error) {
				l.key.Consumer, l.topic = consumer, topic
				err = row.Scan(&l.row, &l.record, &l.key.EventID, &l.key.Order, &l.attempts, &l.headers, &l.payload, &l.until, &l.malformed, &l.former)
				return l, err
			})
			return err
		})
	}
	b.Queue(s.failed.next, consumer).QueryRow(func(row pgx.Row) error { return row.Scan(&ms, &o.dead) })
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, outlook{}, s.hint(err)
	}
	slices.SortFunc(due, func(a, b leased) int { return cmp.Compare(a.row, b.row) })
	o.next = -1
	if ms != nil {
		o.next = max(time.Duration(*ms)*time.Millisecond, 0)
	}
	return due, o, nil
}

// giveBack makes an event that was leased due after a delay.
func (s *PostgresStore) giveBack(ctx context.Context, l leased, delay time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout) // also while the service stops
	defer cancel()
	_, err := s.pool.Exec(ctx, s.failed.back, l.row, l.until, delay.Milliseconds())
	return err
}

// unstick mends keys whose first event was taken away by an operator.
func (s *PostgresStore) unstick(ctx context.Context, consumer string) error {
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	type stuck struct {
		Consumer int16
		Key      string
	}
	rows, err := s.pool.Query(ctx, s.failed.stuck, consumer)
	if err != nil {
		return s.hint(err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stuck])
	if err != nil {
		return s.hint(err)
	}
	for _, k := range keys {
		err := pgtx.Run(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
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
