package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/transport"
)

// skipLocked is the outbox that most articles and in-house services have: rows carry published_at, and a worker takes
// the oldest without it FOR UPDATE SKIP LOCKED, publishes them inside that transaction and sets it. It keeps no order
// per key once there are several workers, or transactions that commit in another order than they began.
//
// Where articles differ, this is the faster choice: IDs are UUIDv7 (random ones scatter the primary key), headers are
// bytea (jsonb costs the writer), the limit is a literal (as a parameter it misleads the planner), and the rows of a
// batch are marked by one statement.
type skipLocked struct{}

func (skipLocked) name() string { return "skip_locked" }

func (skipLocked) note() string {
	return "one worker: BEGIN; SELECT … WHERE published_at IS NULL … FOR UPDATE SKIP LOCKED; publish; UPDATE … SET published_at; COMMIT"
}

func (skipLocked) table(schema string) string { return schema + ".outbox" }

func (s skipLocked) create(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	_, err := pool.Exec(ctx, `create schema `+schema+`;
		create table `+s.table(schema)+` (
			id           uuid        primary key,
			topic        text        not null,
			key          text        not null,
			headers      bytea       not null,
			payload      bytea       not null,
			created_at   timestamptz not null default now(),
			published_at timestamptz
		);
		create index outbox_unpublished on `+s.table(schema)+` (created_at) where published_at is null`)
	return err
}

func (s skipLocked) write(ctx context.Context, pool *pgxpool.Pool, schema string, events []event) error {
	ids, topics, keys := make([]string, len(events)), make([]string, len(events)), make([]string, len(events))
	headers, payloads := make([][]byte, len(events)), make([][]byte, len(events))
	for i, e := range events {
		ids[i], topics[i], keys[i], headers[i], payloads[i] = e.id, topic, e.key, []byte(`{}`), e.payload
	}
	_, err := pool.Exec(ctx, `insert into `+s.table(schema)+` (id, topic, key, headers, payload)
		select * from unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::bytea[])`,
		ids, topics, keys, headers, payloads)
	return err
}

// drain is the worker's loop. When ctx ends, the batch in flight is finished.
func (s skipLocked) drain(ctx context.Context, pool *pgxpool.Pool, schema string, to *sink) error {
	read := fmt.Sprintf(`select id, topic, key, headers, payload from %s
		where published_at is null order by created_at limit %d for update skip locked`, s.table(schema), batchSize)
	mark := fmt.Sprintf(`update %s set published_at = now() where id = any($1)`, s.table(schema))
	for ctx.Err() == nil {
		batchCtx := context.WithoutCancel(ctx)
		if err := pgx.BeginFunc(batchCtx, pool, func(tx pgx.Tx) error {
			rows, err := tx.Query(batchCtx, read)
			if err != nil {
				return err
			}
			batch, err := pgx.CollectRows(rows, scanRow)
			if err != nil || len(batch) == 0 {
				return err
			}
			ids, err := publish(batchCtx, batch, to)
			if err != nil {
				return err
			}
			_, err = tx.Exec(batchCtx, mark, ids)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// row is an event as it stands in the peer's table.
type row struct {
	id         [16]byte
	topic, key string
	headers    []byte
	payload    []byte
}

func scanRow(from pgx.CollectableRow) (r row, err error) {
	return r, from.Scan(&r.id, &r.topic, &r.key, &r.headers, &r.payload)
}

// publish hands the batch to the sink as the messages that Millrace's relay makes of it, and returns the IDs.
func publish(ctx context.Context, batch []row, to *sink) ([][16]byte, error) {
	ids, msgs := make([][16]byte, len(batch)), make([]*message.Message, len(batch))
	for i, r := range batch {
		ids[i] = r.id
		msgs[i] = message.NewMessageWithContext(ctx, uuid.UUID(r.id).String(), r.payload)
		if err := json.Unmarshal(r.headers, &msgs[i].Metadata); err != nil {
			return nil, err
		}
		transport.SetKey(msgs[i], r.key)
	}
	for _, err := range to.PublishBatch(ctx, topic, msgs) {
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func (s skipLocked) left(ctx context.Context, pool *pgxpool.Pool, schema string) (n int, err error) {
	err = pool.QueryRow(ctx, `select count(*) from `+s.table(schema)+` where published_at is null`).Scan(&n)
	return n, err
}

// bury marks the rows, as the worker does.
func (s skipLocked) bury(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	_, err := pool.Exec(ctx, `update `+s.table(schema)+` set published_at = now()`)
	return err
}
