package outbox_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// Business writes and their event in one transaction, in two round trips.
func ExamplePublisher() {
	db := newExampleDatabase()
	defer db.End()
	ctx := context.Background()
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.schema})
	if err != nil {
		panic(err)
	}

	err = pgtx.Run(ctx, db.pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into labours (id, completed_at) values ($1, now())`, "l-7"); err != nil {
			return err
		}
		msg := message.NewMessageWithContext(ctx, outbox.NewID(), []byte(`{"labour":"l-7"}`))
		transport.SetKey(msg, "l-7") // order is kept per key
		return events.Publish("labour.completed", msg)
	})
	fmt.Println(err)
	db.printOutbox()
	// Output:
	// <nil>
	// labour.completed l-7 {"labour":"l-7"}
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
