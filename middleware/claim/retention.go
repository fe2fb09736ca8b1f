package claim

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
)

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
	var r store.Retained
	schema, err := pgschema.Validate(schema)
	if err == nil && keep < minRetention {
		err = fmt.Errorf("keep is %v: want %v or more", keep, minRetention)
	}
	if err == nil {
		r, err = store.Retain(ctx, pool, schema, keep)
	}
	if err != nil {
		return Retained(r), fmt.Errorf("retention of claims: %w", err)
	}
	return Retained(r), nil
}

// DefaultRedeliveryHorizon is how long Pub/Sub keeps a message by default.
const DefaultRedeliveryHorizon = 7 * 24 * time.Hour

// CheckWindow returns an error when a broker may redeliver an event longer than it is remembered that it was processed. The
// horizon counts from the moment when the event was minted: how long it may wait in the outbox, plus how long the broker
// keeps it, plus, where dead letters of the broker's own are sent back, how long those are kept.
func CheckWindow(retention, horizon time.Duration) error {
	if retention < horizon {
		return fmt.Errorf("Retention is %v, and RedeliveryHorizon %v: events that are redelivered after the retention are not run, "+
			"because nobody knows whether they were processed: want a retention of %v or more, or a broker that keeps events for less",
			retention, horizon, horizon)
	}
	return nil
}

// Kept is what the store remembers beside the days.
type Kept struct {
	Hashed    int64      `json:"hashed"` // records of IDs that tell no time; counted to 100,000, which means that or more
	Consumers []Consumer `json:"consumers"`
}

// Consumer is one that has claimed.
type Consumer struct {
	Name  string     `json:"name"`
	Floor *time.Time `json:"floor"` // an event that was minted before is not run: see ErrTooOld; nil: none
}

// InspectKept tells what the schema's store ("" means "millrace") remembers.
func InspectKept(ctx context.Context, pool *pgxpool.Pool, schema string) (*Kept, error) {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return nil, fmt.Errorf("inspect claims: %w", err)
	}
	k := &Kept{}
	b := &pgx.Batch{}
	b.Queue(store.Query("claim_hashed", schema)).QueryRow(func(row pgx.Row) error { return row.Scan(&k.Hashed) })
	b.Queue(store.Query("consumer_list", schema)).Query(func(rows pgx.Rows) (err error) {
		k.Consumers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Consumer])
		return err
	})
	if err := pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("inspect claims: %w", (&store.Claims{Schema: schema}).Hint(err))
	}
	return k, nil
}
