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

// DefaultRetention is how long the record that an event was processed is kept. It is twice as long as Pub/Sub keeps a message
// by default, so that a subscription's backlog and an operator's vacation fit into it.
const DefaultRetention = 14 * 24 * time.Hour

// minRetention is long enough to keep yesterday's partition, which is made together with today's.
const minRetention = 24 * time.Hour

// Retained is the result of Retain.
type Retained struct {
	Days   []string  `json:"days"`           // names of the partitions that were dropped
	Floor  time.Time `json:"floor,omitzero"` // the retention watermark: older events cannot be proved new; zero: not raised
	Hashed int64     `json:"hashed"`         // number of deleted records of IDs without a time
}

// Retain makes a week of partitions ahead in the schema ("" means "millrace"), and drops records that are older than keep, which is
// 24h or more, and than the retentions of all services that run or ran lately (see Config.Retention). It drops whole days by the time in the events' IDs. Records of IDs without a time are deleted in small
// transactions, by the time of their claims. Before it drops a day it raises the retention watermark of every consumer to the day's
// end. Redelivered events from before the watermark are not run, because nobody knows whether they were processed.
//
// Retain blocks no claims, but waits for running ones. Only the owner of the tables may drop partitions. Retain may run at any time,
// in several processes at once, and continues where another run was interrupted.
func Retain(ctx context.Context, pool *pgxpool.Pool, schema string, keep time.Duration) (Retained, error) {
	var r store.Retained
	schema, err := pgschema.Validate(schema)
	if err == nil && keep < minRetention {
		err = fmt.Errorf("keep is %v: want %v or more", keep, minRetention)
	}
	if err == nil {
		r, err = store.Retain(ctx, pool, schema, "", keep)
	}
	if err != nil {
		return Retained(r), fmt.Errorf("retention of claims: %w", err)
	}
	return Retained(r), nil
}

// DefaultRedeliveryHorizon is how long Pub/Sub keeps a message by default.
const DefaultRedeliveryHorizon = 7 * 24 * time.Hour

// CheckWindow returns an error if a broker may redeliver an event for longer than the record of the event is kept. The horizon
// counts from the moment at which the event's ID was made: the longest wait in the outbox, plus the time that the broker keeps
// the event, plus, if the broker's own dead letters are sent back, the time that those are kept.
func CheckWindow(retention, horizon time.Duration) error {
	if retention < horizon {
		return fmt.Errorf("Retention is %v, and RedeliveryHorizon %v: events that are redelivered after the retention are not run, "+
			"because nobody knows whether they were processed: want a retention of %v or more, or a broker that keeps events for less",
			retention, horizon, horizon)
	}
	return nil
}

// Kept describes the records that the store keeps beside the partitions by day, and its consumers.
type Kept struct {
	Hashed    int64      `json:"hashed"` // records of IDs without a time, counted up to 100,000
	Consumers []Consumer `json:"consumers"`
}

// Consumer is a consumer that has claimed events.
type Consumer struct {
	Name  string     `json:"name"`
	Floor *time.Time `json:"floor"` // retention watermark: an event whose ID was made before it is not run (ErrTooOld); nil: none
}

// InspectKept returns the state of the store in the schema ("" means "millrace").
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
