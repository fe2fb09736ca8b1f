package outboxadmin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

const (
	cleanRows = 5_000 // as many events are deleted at once, and wait for one confirmation
	cleanPoll = 200 * time.Millisecond
)

// Clean deletes the events that Debezium has published in place of a relay, and are older than an age. It deletes an event only
// after the reader of the replication slot has confirmed it, and waits for that until ctx ends. It returns how many it deleted, on
// an error, too. Where the slot is gone or lost it deletes nothing, because Debezium must read the rows again. Do not call it
// where a relay publishes: a slot knows nothing of what the relay has published.
func Clean(ctx context.Context, db pgtx.DB, schema, slot string, olderThan time.Duration) (n int64, err error) {
	if olderThan < 0 {
		return 0, errors.New("clean the outbox: the age is negative")
	}
	for {
		deleted, err := cleaner{db, schema, slot, olderThan}.some(ctx)
		if n += deleted; err != nil || deleted == 0 {
			return n, err
		}
	}
}

type cleaner struct {
	db           pgtx.DB
	schema, slot string
	olderThan    time.Duration
}

func (c cleaner) transact(ctx context.Context, f func(ctx context.Context, tx pgx.Tx, schema string) error) error {
	return administer(ctx, c.db, c.schema, "clean the outbox", f, pgtx.Isolation(pgx.ReadCommitted))
}

// some reads events, and then how long the WAL is: the commit of what it has read lies before that. The slot is there before, and its
// start lies before, too, because the transaction that reads writes its end to the WAL: so the slot's reader has gone on since it began.
func (c cleaner) some(ctx context.Context) (n int64, err error) {
	var places, ids []string
	var seqs []int64
	var end string
	err = c.transact(ctx, func(ctx context.Context, tx pgx.Tx, schema string) error {
		if _, err := c.slotHas(ctx, tx, schema, "0/0"); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, query("clean_read", schema), c.olderThan.Seconds(), cleanRows).Scan(&places, &seqs, &ids); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `select pg_current_xact_id()`) // without one, a commit writes nothing
		return err
	})
	if err != nil || len(places) == 0 {
		return 0, err
	}
	err = c.transact(ctx, func(ctx context.Context, tx pgx.Tx, _ string) error {
		return tx.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&end)
	})
	if err != nil {
		return 0, err
	}
	if err := c.confirmed(ctx, end); err != nil {
		return 0, err
	}
	err = c.transact(ctx, func(ctx context.Context, tx pgx.Tx, schema string) error {
		done, err := tx.Exec(ctx, query("clean", schema), places, seqs, ids)
		n = done.RowsAffected()
		return err
	})
	return n, err
}

// confirmed waits until the slot's reader has confirmed the WAL up to its end.
func (c cleaner) confirmed(ctx context.Context, end string) error {
	for {
		var confirmed bool
		err := c.transact(ctx, func(ctx context.Context, tx pgx.Tx, schema string) (err error) {
			confirmed, err = c.slotHas(ctx, tx, schema, end)
			return err
		})
		if err == nil && confirmed {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-time.After(cleanPoll):
		case <-ctx.Done():
			return fmt.Errorf("clean the outbox: the replication slot %q has not confirmed the WAL up to %s, so nothing is deleted: does Debezium run? %w", c.slot, end, context.Cause(ctx))
		}
	}
}

// slotHas reports whether the slot's reader has confirmed the WAL up to end. It is an error if there is no such slot to read.
func (c cleaner) slotHas(ctx context.Context, tx pgx.Tx, schema, end string) (confirmed bool, err error) {
	var readable bool
	err = tx.QueryRow(ctx, query("clean_slot", schema), c.slot, end).Scan(&readable, &confirmed)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, fmt.Errorf("there is no logical replication slot %q of this database: start Debezium, which makes it and reads all rows again", c.slot)
	case err == nil && !readable:
		return false, fmt.Errorf("the replication slot %q is lost: drop it and restart Debezium, which reads all rows again", c.slot)
	}
	return confirmed, err
}
