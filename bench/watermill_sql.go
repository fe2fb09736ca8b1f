package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/transport"
)

// watermillSQL is watermill-sql's subscriber for PostgreSQL, whose messages go straight to the sink: no router, no
// envelope, the least that it can do. It keeps the messages for ever, so only its own offset tells what is left.
//
// It is set up for speed. Its batch is the largest of 100 (its default), 1,000 and 10,000: each query sorts the whole
// rest of the table, so the largest is the fastest. The payload is bytea (its JSON default could not hold these payloads
// and costs more), there is no deadline per message (its default makes a timer for each), and its own poll never waits
// while there are messages. It speaks pgx.
type watermillSQL struct{ batch int }

// fastWatermillSQL is the contestant.
var fastWatermillSQL = watermillSQL{batch: 10_000}

// recordTimeout bounds the wait for what is on its way to be recorded.
const recordTimeout = time.Minute

func (watermillSQL) name() string { return "watermill_sql" }

func (w watermillSQL) note() string {
	return "watermill-sql's subscriber, batches of " + thousands(float64(w.batch)) + ", no router; in a time box where it does not get through"
}

func (watermillSQL) table(schema string) string   { return schema + ".messages" }
func (watermillSQL) offsets(schema string) string { return schema + ".offsets" }

func (w watermillSQL) schemaAdapter(schema string) watermillsql.DefaultPostgreSQLSchema {
	return watermillsql.DefaultPostgreSQLSchema{
		GenerateMessagesTableName: func(string) string { return w.table(schema) },
		GeneratePayloadType:       func(string) string { return "BYTEA" },
		SubscribeBatchSize:        w.batch,
	}
}

func (w watermillSQL) subscriber(pool *pgxpool.Pool, schema string) (*watermillsql.Subscriber, error) {
	var noDeadline time.Duration
	return watermillsql.NewSubscriber(watermillsql.BeginnerFromPgx(pool), watermillsql.SubscriberConfig{
		SchemaAdapter: w.schemaAdapter(schema),
		OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{
			GenerateMessagesOffsetsTableName: func(string) string { return w.offsets(schema) },
		},
		AckDeadline:  &noDeadline,
		PollInterval: time.Millisecond,
	}, watermill.NopLogger{})
}

func (w watermillSQL) create(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	if _, err := pool.Exec(ctx, `create schema `+schema); err != nil {
		return err
	}
	s, err := w.subscriber(pool, schema)
	if err != nil {
		return err
	}
	return errors.Join(s.SubscribeInitialize(topic), s.Close())
}

// write makes the rows that its publisher makes of the same messages, by one statement with five parameters instead of
// three per message, of which PostgreSQL takes 65,535 and each costs a parse.
func (w watermillSQL) write(ctx context.Context, pool *pgxpool.Pool, schema string, events []event) error {
	msgs := make([]*message.Message, len(events))
	for i, e := range events {
		msgs[i] = message.NewMessage(e.id, e.payload)
		transport.SetKey(msgs[i], e.key)
	}
	return w.insert(ctx, pool, schema, msgs)
}

func (w watermillSQL) insert(ctx context.Context, pool *pgxpool.Pool, schema string, msgs []*message.Message) error {
	ids, payloads, metadata := make([]string, len(msgs)), make([][]byte, len(msgs)), make([]string, len(msgs))
	for i, m := range msgs {
		encoded, err := json.Marshal(m.Metadata)
		if err != nil {
			return err
		}
		ids[i], payloads[i], metadata[i] = m.UUID, m.Payload, string(encoded)
	}
	_, err := pool.Exec(ctx, `insert into `+w.table(schema)+` (uuid, payload, metadata, transaction_id)
		select id, payload, metadata::json, pg_current_xact_id()
		from unnest($1::text[], $2::bytea[], $3::text[]) as u (id, payload, metadata)`, ids, payloads, metadata)
	return err
}

// drain acknowledges each message once the sink has it.
func (w watermillSQL) drain(ctx context.Context, pool *pgxpool.Pool, schema string, to *sink) error {
	s, err := w.subscriber(pool, schema)
	if err != nil {
		return err
	}
	// The transaction that has read a batch records it, so the subscription outlives ctx a little.
	messages, err := s.Subscribe(context.WithoutCancel(ctx), topic)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		select {
		case msg := <-messages:
			if err := to.Publish(topic, msg); err != nil {
				return err
			}
			msg.Ack()
		case <-ctx.Done():
		}
	}
	return errors.Join(w.recorded(ctx, pool, schema, to), s.Close())
}

// recorded waits, when the sink has all messages, for the commit of the last batch.
func (w watermillSQL) recorded(ctx context.Context, pool *pgxpool.Pool, schema string, to *sink) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	for to.complete() {
		left, err := w.left(ctx, pool, schema)
		if err != nil || left == 0 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// left counts the messages behind the offset; the messages themselves stay.
func (w watermillSQL) left(ctx context.Context, pool *pgxpool.Pool, schema string) (n int, err error) {
	err = pool.QueryRow(ctx, `select count(*) from `+w.table(schema)+` m, `+w.offsets(schema)+` o
		where (m.transaction_id, m."offset") > (o.last_processed_transaction_id, o.offset_acked)`).Scan(&n)
	return n, err
}
