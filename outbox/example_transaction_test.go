package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// A transaction that the service begins and commits itself. Nobody sees the commit, so a relay of this process would be
// nudged after it (Relay.Nudge); else its poll finds the event.
func ExamplePublisher_ownTransaction() {
	db := newExampleDatabase()
	defer db.End()
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.schema})
	if err != nil {
		panic(err)
	}

	complete := func(ctx context.Context, pool *pgxpool.Pool) (err error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() {
			if rerr := tx.Rollback(ctx); !errors.Is(rerr, pgx.ErrTxClosed) {
				err = errors.Join(err, rerr)
			}
		}()
		msg := message.NewMessageWithContext(pgtx.With(ctx, tx), outbox.NewID(), []byte(`{"labour":"l-7"}`))
		if err := events.Publish("labour.completed", msg); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
	fmt.Println(complete(context.Background(), db.pool))
	db.printOutbox()
	// Output:
	// <nil>
	// labour.completed  {"labour":"l-7"}
}

// A transaction of database/sql, whatever the driver.
func ExamplePublisher_databaseSQL() {
	db := newExampleDatabase()
	defer db.End()
	std := stdlib.OpenDBFromPool(db.pool)
	defer std.Close()
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.schema})
	if err != nil {
		panic(err)
	}

	complete := func(ctx context.Context, db *sql.DB) (err error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() {
			if rerr := tx.Rollback(); !errors.Is(rerr, sql.ErrTxDone) {
				err = errors.Join(err, rerr)
			}
		}()
		if _, err := tx.ExecContext(ctx, `insert into labours (id, completed_at) values ($1, now())`, "l-7"); err != nil {
			return err
		}
		msg := message.NewMessageWithContext(pgtx.WithSQL(ctx, tx), outbox.NewID(), []byte(`{"labour":"l-7"}`))
		if err := events.Publish("labour.completed", msg); err != nil {
			return err
		}
		return tx.Commit()
	}
	fmt.Println(complete(context.Background(), std))
	db.printOutbox()
	// Output:
	// <nil>
	// labour.completed  {"labour":"l-7"}
}
