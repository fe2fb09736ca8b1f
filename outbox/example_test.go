package outbox_test

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// Business writes and their event in one transaction.
func ExamplePublisher() {
	complete := func(ctx context.Context, pool *pgxpool.Pool, events *outbox.Publisher, id string) error {
		return pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `update labours set completed_at = now() where id = $1`, id); err != nil {
				return err
			}
			msg := message.NewMessageWithContext(ctx, outbox.NewID(), []byte(`{"labour":"`+id+`"}`))
			transport.SetKey(msg, id)
			return events.Publish("labour.completed", msg)
		})
	}
	_ = complete
}

// A transaction that the service begins and commits itself: the relay does not see its commit, so it is nudged.
func ExamplePublisher_ownTransaction() {
	complete := func(ctx context.Context, pool *pgxpool.Pool, events *outbox.Publisher, relay *outbox.Relay, id string) (err error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() {
			if rerr := tx.Rollback(ctx); !errors.Is(rerr, pgx.ErrTxClosed) {
				err = errors.Join(err, rerr)
			}
		}()
		msg := message.NewMessageWithContext(pgtx.With(ctx, tx), outbox.NewID(), []byte(`{"labour":"`+id+`"}`))
		if err := events.Publish("labour.completed", msg); err != nil {
			return err
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		relay.Nudge()
		return nil
	}
	_ = complete
}

// The relay runs until its context ends, in the service or in a process of its own.
func ExampleRelay() {
	run := func(ctx context.Context, pool *pgxpool.Pool, broker transport.Transport) error {
		if err := outbox.Migrate(ctx, pool, ""); err != nil {
			return err
		}
		publisher, err := broker.Publisher()
		if err != nil {
			return err
		}
		relay, err := outbox.NewRelay(pool, publisher, outbox.RelayConfig{})
		if err != nil {
			return err
		}
		return relay.Run(ctx)
	}
	_ = run
}
