package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/pgtx"
)

// bareCommit is the unit of measure: the smallest transaction that there is, one row in one statement and one round trip.
type bareCommit struct{ schema string }

func (b bareCommit) table() string { return b.schema + ".bare" }

func (b bareCommit) create(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, `create table `+b.table()+` (id bigint generated always as identity primary key, v int not null)`)
	return err
}

func (b bareCommit) commit(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, `insert into `+b.table()+` (v) values (1)`)
	return err
}

// fiveStatements is the idempotent consumer as articles write it: a lock, a look, a record, its completion, and the
// handler's own statement between them, each a round trip, with text keys and a status. That the lock was refused is an
// error here, since nothing is delivered twice.
type fiveStatements struct {
	pool   *pgxpool.Pool
	schema string
}

func (f fiveStatements) table() string { return f.schema + ".processed_event" }

func (f fiveStatements) create(ctx context.Context) error {
	_, err := f.pool.Exec(ctx, `create table `+f.table()+` (
		consumer text not null, event_id text not null, status text not null,
		created_at timestamptz not null default now(), completed_at timestamptz,
		primary key (consumer, event_id))`)
	return err
}

func (f fiveStatements) guard() (message.HandlerMiddleware, error) {
	return f.wrap, nil
}

func (f fiveStatements) wrap(h message.HandlerFunc) message.HandlerFunc {
	look := `select status from ` + f.table() + ` where consumer = $1 and event_id = $2`
	begin := `insert into ` + f.table() + ` (consumer, event_id, status) values ($1, $2, 'PROCESSING')`
	complete := `update ` + f.table() + ` set status = 'COMPLETED', completed_at = now() where consumer = $1 and event_id = $2`
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		return nil, pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
			var locked bool
			if err := tx.QueryRow(ctx, `select pg_try_advisory_xact_lock($1)`, lockKey(msg.UUID)).Scan(&locked); err != nil {
				return err
			}
			if !locked {
				return errors.New("another consumer holds the lock")
			}
			var status string
			err := tx.QueryRow(ctx, look, handlerName, msg.UUID).Scan(&status)
			if !errors.Is(err, pgx.ErrNoRows) {
				return err // nil: processed before
			}
			if _, err := tx.Exec(ctx, begin, handlerName, msg.UUID); err != nil {
				return err
			}
			msg.SetContext(pgtx.With(ctx, tx))
			if _, err := h(msg); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, complete, handlerName, msg.UUID)
			return err
		})
	}
}

func lockKey(id string) int64 {
	hash := sha256.Sum256([]byte(id))
	return int64(binary.BigEndian.Uint64(hash[:8]))
}

// blocking lets the unique index keep duplicates away: a second delivery waits there until the first one's transaction
// has ended. It is otherwise as good as the claim: the same keys, in as few round trips.
type blocking struct {
	pool   *pgxpool.Pool
	schema string
}

func (b blocking) table() string { return b.schema + ".inbox" }

func (b blocking) create(ctx context.Context) error {
	_, err := b.pool.Exec(ctx, `create table `+b.table()+` (event_id uuid not null, consumer smallint not null,
		claimed_at timestamptz not null default now(), primary key (event_id, consumer))`)
	return err
}

func (b blocking) guard() (message.HandlerMiddleware, error) {
	return b.wrap, nil
}

func (b blocking) wrap(h message.HandlerFunc) message.HandlerFunc {
	insert := `insert into ` + b.table() + ` (event_id, consumer) values ($1, 1) on conflict do nothing`
	return func(msg *message.Message) ([]*message.Message, error) {
		return nil, pgtx.Run(msg.Context(), b.pool, func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, insert, msg.UUID)
			if err != nil || tag.RowsAffected() == 0 {
				return err // nil: processed before
			}
			msg.SetContext(ctx)
			_, err = h(msg)
			return err
		})
	}
}
