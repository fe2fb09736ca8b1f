package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// singleSelect reads Millrace's own table with one SELECT of everything, in no order, and neither publishes nor records
// anything: no relay with one connection could be faster, and no relay at all could do it, since it has no batches.
type singleSelect struct{ millrace }

func (singleSelect) name() string { return "single_select" }

func (singleSelect) note() string {
	return "not a relay but a bound: one SELECT of all rows on one connection, nothing recorded"
}

func (s singleSelect) drain(ctx context.Context, pool *pgxpool.Pool, schema string, to *sink) error {
	rows, err := pool.Query(context.WithoutCancel(ctx), `select event_id, topic, key, headers, payload from `+s.table(schema))
	if err != nil {
		return err
	}
	var (
		id, topicName, key string
		headers, payload   []byte
		one                = make([]*message.Message, 1)
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &topicName, &key, &headers, &payload}, func() error {
		one[0] = &message.Message{UUID: id}
		to.PublishBatch(ctx, topicName, one)
		return nil
	})
	return err
}

// left is 0: reading leaves every row where it was, and nothing else is expected of it.
func (singleSelect) left(context.Context, *pgxpool.Pool, string) (int, error) { return 0, nil }
