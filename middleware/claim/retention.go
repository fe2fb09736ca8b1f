package claim

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// processed is the table of the records.
const processed = "processed"

// DefaultRetention is how long it is remembered that an event was processed: twice as long as Pub/Sub keeps a message by
// default, so that a subscription's backlog and an operator's vacation fit into it.
const DefaultRetention = 14 * 24 * time.Hour

// minRetention keeps yesterday, which is made as a day too.
const minRetention = 24 * time.Hour

// Retained is what retention did.
type Retained struct {
	Days   []string  `json:"days"`           // partitions that were dropped
	Floor  time.Time `json:"floor,omitzero"` // what was minted before can no longer be proved new; zero: as before
	Hashed int64     `json:"hashed"`         // records of IDs without a time that were deleted
}

// Retain makes days of the schema ("" means "millrace") for a week ahead, and forgets what was processed longer ago than
// keep, 24h or more: it drops days by the time in the events' IDs, and deletes, in small transactions, the records of IDs
// that tell none by the time of their claims. Before it drops a day it sets the floor of every consumer that is there:
// redelivered events from before are not run, because nobody knows whether they were.
//
// It blocks no claim, and waits for those that run. Only the tables' owner may drop. It may run at any time, in several
// processes at once, and goes on where another was interrupted.
func Retain(ctx context.Context, pool *pgxpool.Pool, schema string, keep time.Duration) (Retained, error) {
	var r Retained
	schema, err := pgschema.Validate(schema)
	if err == nil && keep < minRetention {
		err = fmt.Errorf("keep is %v: want %v or more", keep, minRetention)
	}
	if err == nil {
		err = r.retain(ctx, pool, schema, keep)
	}
	if err != nil {
		return r, fmt.Errorf("retention of claims: %w", err)
	}
	return r, nil
}

func (r *Retained) retain(ctx context.Context, pool *pgxpool.Pool, schema string, keep time.Duration) error {
	sql, table := statementsIn(schema), pgdays.Table{Schema: schema, Name: processed}
	if err := table.Ahead(ctx, pool); err != nil {
		return err
	}
	if err := table.Owned(ctx, pool); err != nil {
		return err
	}
	var now time.Time
	if err := pool.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return fmt.Errorf("ask for the server's time: %w", err)
	}
	days, err := table.Days(ctx, pool)
	if err != nil {
		return err
	}
	for _, d := range days {
		if end := d.End(); !end.After(now.Add(-keep)) && end.After(r.Floor) {
			r.Floor = end
		}
	}
	if err := raise(ctx, pool, sql, r.Floor); err != nil {
		return fmt.Errorf("raise the consumers' floor: %w", err)
	}
	dropped, err := table.Drop(ctx, pool, now.Add(-keep)) // the days that made the floor, and what an earlier one has left
	for _, d := range dropped {
		r.Days = append(r.Days, d.Partition)
	}
	for err == nil {
		var tag pgconn.CommandTag
		if tag, err = pool.Exec(ctx, sql.prune, now.Add(-keep)); tag.RowsAffected() == 0 {
			break
		}
		r.Hashed += tag.RowsAffected()
	}
	return err
}

// raise binds every consumer, before anything is dropped.
func raise(ctx context.Context, pool *pgxpool.Pool, sql statements, floor time.Time) error {
	if floor.IsZero() {
		return nil
	}
	return pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		// One that registers at this moment is bound by the floor, or knows it.
		if _, err := tx.Exec(ctx, sql.lockConsumers); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sql.floor, floor)
		return err
	}, pgtx.Isolation(pgx.ReadCommitted))
}

// housekeep is Retain for a consumer, whose role need not own the tables.
func (s *PostgresStore) housekeep(ctx context.Context, keep time.Duration) error {
	_, err := Retain(ctx, s.pool, s.schema, keep)
	return pgdays.Table{Schema: s.schema, Name: processed}.Excuse(ctx, s.pool, keep, err)
}
