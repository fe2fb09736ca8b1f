package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/pgtx"
)

// Retained is the result of Retain.
type Retained struct {
	Days   []string  // dropped partitions
	Floor  time.Time // the new retention watermark: older events cannot be proved new; zero: unchanged
	Hashed int64     // deleted records of IDs without a time
}

// Retain creates days for a week ahead, and deletes records and counts that are older than keep and than the retentions of all
// services. It notes keep as the retention of the service; "" is none. After an error it returns what it did until then.
func Retain(ctx context.Context, pool *pgxpool.Pool, schema, service string, keep time.Duration) (r Retained, err error) {
	sql, table, journal := statementsIn(schema), pgdays.Table{Schema: schema, Name: "processed"}, pgdays.Table{Schema: schema, Name: "journal"}
	if err := errors.Join(table.Ahead(ctx, pool), journal.Ahead(ctx, pool)); err != nil {
		return r, err
	}
	before, err := table.Expiry(ctx, pool, service, keep)
	if err == nil {
		err = table.Owned(ctx, pool)
	}
	if err != nil {
		return r, err
	}
	days, err := table.Days(ctx, pool)
	if err != nil {
		return r, err
	}
	for _, d := range days {
		if end := d.End(); !end.After(before) && end.After(r.Floor) {
			r.Floor = end
		}
	}
	if err := raise(ctx, pool, sql, r.Floor); err != nil {
		return r, fmt.Errorf("record the oldest day that consumers may look in: %w", err)
	}
	dropped, err := table.Drop(ctx, pool, before) // days below the watermark, and days that an earlier run has left
	for _, d := range dropped {
		r.Days = append(r.Days, d.Partition)
	}
	if err == nil {
		_, err = journal.Drop(ctx, pool, before)
	}
	for err == nil {
		var tag pgconn.CommandTag
		if tag, err = pool.Exec(ctx, sql.prune, before); tag.RowsAffected() == 0 {
			break
		}
		r.Hashed += tag.RowsAffected()
	}
	return r, err
}

// raise raises the retention watermark of every consumer, before days are dropped.
func raise(ctx context.Context, pool *pgxpool.Pool, sql statements, floor time.Time) error {
	if floor.IsZero() {
		return nil
	}
	return pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		// A consumer that registers at this moment either gets the watermark, or knows it.
		if _, err := tx.Exec(ctx, sql.lockConsumers); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sql.floor, floor)
		return err
	}, pgtx.Isolation(pgx.ReadCommitted))
}

// Housekeep calls Retain for a service, whose role need not own the tables.
func (s *Postgres) Housekeep(ctx context.Context, service string, keep time.Duration) error {
	_, err := Retain(ctx, s.Pool, s.Schema, service, keep)
	return s.Hint(pgdays.Table{Schema: s.Schema, Name: "processed"}.Excuse(ctx, s.Pool, service, keep, err))
}
