package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	oagudooutbox "github.com/oagudo/outbox"
)

// oagudo is github.com/oagudo/outbox with the table and the indexes of its README. Its reader works at each tick, one
// batch and one message at a time, so it ticks as often as it can; it reads and deletes 1,000 rows at once (its defaults
// are 100 and 20). It has neither topics nor keys: the key travels in the metadata.
type oagudo struct{}

func (oagudo) name() string { return "oagudo" }

func (oagudo) note() string {
	return "github.com/oagudo/outbox: its reader, batches of " + thousands(batchSize) + ", deletes of as many, a tick each millisecond"
}

func (oagudo) table(schema string) string { return schema + ".outbox" }

func (o oagudo) create(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	_, err := pool.Exec(ctx, `create schema `+schema+`;
		create table `+o.table(schema)+` (
			id              uuid                     primary key,
			created_at      timestamp with time zone not null,
			scheduled_at    timestamp with time zone not null,
			metadata        bytea,
			payload         bytea                    not null,
			times_attempted integer                  not null
		);
		create index idx_outbox_created_at on `+o.table(schema)+` (created_at);
		create index idx_outbox_scheduled_at on `+o.table(schema)+` (scheduled_at)`)
	return err
}

func (o oagudo) write(ctx context.Context, pool *pgxpool.Pool, schema string, events []event) error {
	ids, metadata, payloads := make([]string, len(events)), make([][]byte, len(events)), make([][]byte, len(events))
	for i, e := range events {
		ids[i], metadata[i], payloads[i] = e.id, []byte(e.key), e.payload
	}
	_, err := pool.Exec(ctx, `insert into `+o.table(schema)+` (id, created_at, scheduled_at, metadata, payload, times_attempted)
		select id, now(), now(), metadata, payload, 0
		from unnest($1::uuid[], $2::bytea[], $3::bytea[]) as u (id, metadata, payload)`, ids, metadata, payloads)
	return err
}

// open returns a handle for which the table is simply "outbox", as the library has it.
func (oagudo) open(ctx context.Context, pool *pgxpool.Pool, schema string) (*sql.DB, error) {
	cfg := pool.Config().ConnConfig.Copy()
	cfg.RuntimeParams["search_path"] = schema
	cfg.RuntimeParams["timezone"] = "UTC" // its query compares the local time in UTC
	db := stdlib.OpenDB(*cfg)
	limit := int(pool.Config().MaxConns)
	db.SetMaxOpenConns(limit)
	db.SetMaxIdleConns(limit)
	return db, db.PingContext(ctx)
}

func (o oagudo) drain(ctx context.Context, pool *pgxpool.Pool, schema string, to *sink) (err error) {
	db, err := o.open(ctx, pool, schema)
	defer func() { err = errors.Join(err, db.Close()) }()
	if err != nil {
		return err
	}
	reader := oagudooutbox.NewReader(
		oagudooutbox.NewDBContext(db, oagudooutbox.SQLDialectPostgres),
		oagudoPublisher{to},
		oagudooutbox.WithInterval(time.Millisecond),
		oagudooutbox.WithReadBatchSize(batchSize),
		oagudooutbox.WithDeleteBatchSize(batchSize),
	)
	reader.Start()
	select {
	case err := <-reader.Errors():
		_ = reader.Stop(context.WithoutCancel(ctx)) // never ends before the reader has, without a deadline
		return fmt.Errorf("reader: %w", err)
	case <-ctx.Done():
	}
	return reader.Stop(context.WithoutCancel(ctx)) // deletes what it has published
}

func (o oagudo) left(ctx context.Context, pool *pgxpool.Pool, schema string) (n int, err error) {
	err = pool.QueryRow(ctx, `select count(*) from `+o.table(schema)).Scan(&n)
	return n, err
}

// oagudoPublisher hands each message to the sink as the one that Millrace's relay makes of it.
type oagudoPublisher struct{ to *sink }

func (p oagudoPublisher) Publish(_ context.Context, m *oagudooutbox.Message) error {
	return p.to.Publish(topic, message.NewMessage(m.ID.String(), m.Payload))
}
