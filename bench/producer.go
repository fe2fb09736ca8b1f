package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	oagudooutbox "github.com/oagudo/outbox"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// producer is a contestant of outboxWrite: a service's transaction, with one business statement and perhaps an event.
type producer interface {
	name() string
	note() string
	// table is the one that an event is expected in for each transaction; "" when there is none.
	table(schema string) string
	// commit makes the n-th transaction and returns once it is committed.
	commit(ctx context.Context, n int, e event) error
}

// orders is the business table. The statement is what a service's cheapest transaction has: one small row.
type orders struct{ schema string }

func (o orders) table() string { return o.schema + ".orders" }

func (o orders) create(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, `create table `+o.table()+` (
		id bigint generated always as identity primary key, customer bigint not null, amount numeric not null,
		note text not null, created_at timestamptz not null default now())`)
	return err
}

func (o orders) insert() string {
	return `insert into ` + o.table() + ` (customer, amount, note) values ($1, 12.5, 'two of these, one of those, please before noon')`
}

// plain has no outbox: an ordinary BEGIN, the statement, and COMMIT, three round trips.
type plain struct {
	pool   *pgxpool.Pool
	orders orders
	label  string
}

func (p plain) name() string      { return p.label }
func (plain) note() string        { return "BEGIN; the business statement; COMMIT: no outbox at all" }
func (plain) table(string) string { return "" }

func (p plain) commit(ctx context.Context, n int, _ event) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, p.orders.insert(), n)
		return err
	})
}

// withOutbox publishes an event in pgtx.Run.
type withOutbox struct {
	pool      *pgxpool.Pool
	orders    orders
	publisher *outbox.Publisher
	label     string
}

func (w withOutbox) name() string             { return w.label }
func (withOutbox) note() string               { return "pgtx.Run with the business statement and one event" }
func (withOutbox) table(schema string) string { return millrace{}.table(schema) }

func (w withOutbox) commit(ctx context.Context, n int, e event) error {
	return pgtx.Run(ctx, w.pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, w.orders.insert(), n); err != nil {
			return err
		}
		return publishEvent(ctx, w.publisher, e)
	})
}

// callerTx publishes an event in a transaction that the service began: it is inserted at once.
type callerTx struct{ withOutbox }

func (callerTx) name() string { return "caller_tx" }
func (callerTx) note() string {
	return "the caller's own pgx.Tx: BEGIN; the business statement; the event by pgtx.With; COMMIT"
}

func (c callerTx) commit(ctx context.Context, n int, e event) error {
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, c.orders.insert(), n); err != nil {
			return err
		}
		return publishEvent(pgtx.With(ctx, tx), c.publisher, e)
	})
}

func publishEvent(ctx context.Context, publisher *outbox.Publisher, e event) error {
	msg := message.NewMessageWithContext(ctx, e.id, e.payload)
	transport.SetKey(msg, e.key)
	return publisher.Publish(topic, msg)
}

// oagudoWriter is the writer of github.com/oagudo/outbox, over database/sql, which is all that it takes, and pgx.
type oagudoWriter struct {
	db     *sql.DB
	writer *oagudooutbox.Writer
	orders orders
}

func newOagudoWriter(ctx context.Context, pool *pgxpool.Pool, schema string, orders orders) (*oagudoWriter, error) {
	if err := (oagudo{}).create(ctx, pool, schema); err != nil {
		return nil, err
	}
	db, err := oagudo{}.open(ctx, pool, schema)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &oagudoWriter{
		db: db, orders: orders,
		writer: oagudooutbox.NewWriter(oagudooutbox.NewDBContext(db, oagudooutbox.SQLDialectPostgres)),
	}, nil
}

func (*oagudoWriter) name() string { return "oagudo" }
func (*oagudoWriter) note() string {
	return "github.com/oagudo/outbox: Writer.Write with the business statement and one message, over database/sql"
}

func (*oagudoWriter) table(schema string) string { return oagudo{}.table(oagudoSchema(schema)) }

func oagudoSchema(schema string) string { return schema + "_oagudo" }

func (o *oagudoWriter) commit(ctx context.Context, n int, e event) error {
	id, err := uuid.Parse(e.id)
	if err != nil {
		return fmt.Errorf("event ID: %w", err)
	}
	msg := oagudooutbox.NewMessage(e.payload, oagudooutbox.WithID(id), oagudooutbox.WithMetadata([]byte(e.key)))
	return o.writer.Write(ctx, msg, func(ctx context.Context, tx oagudooutbox.TxQueryer) error {
		_, err := tx.ExecContext(ctx, o.orders.insert(), n)
		return err
	})
}
