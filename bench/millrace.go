package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// millrace is outbox.Relay, with events that outbox.Publisher wrote.
type millrace struct{}

func (millrace) name() string { return "relay" }

func (millrace) note() string {
	return "one outbox.Relay, its 16 shards in one process, order kept per key; deletes commit asynchronously"
}

func (millrace) create(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	return outbox.Migrate(ctx, pool, schema)
}

func (millrace) table(schema string) string { return schema + ".outbox" }

func (millrace) write(ctx context.Context, pool *pgxpool.Pool, schema string, events []event) error {
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	if err != nil {
		return err
	}
	return pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
		msgs := make([]*message.Message, len(events))
		for i, e := range events {
			msgs[i] = message.NewMessageWithContext(ctx, e.id, e.payload)
			transport.SetKey(msgs[i], e.key)
		}
		return publisher.Publish(topic, msgs...)
	})
}

func (millrace) drain(ctx context.Context, pool *pgxpool.Pool, schema string, to *sink) error {
	relay, err := outbox.NewRelay(pool, to, outbox.RelayConfig{Schema: schema, BatchSize: batchSize})
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

func (m millrace) left(ctx context.Context, pool *pgxpool.Pool, schema string) (n int, err error) {
	err = pool.QueryRow(ctx, `select count(*) from `+m.table(schema)).Scan(&n)
	return n, err
}

// bury deletes the rows, as the relay does.
func (m millrace) bury(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	_, err := pool.Exec(ctx, `delete from `+m.table(schema))
	return err
}
