package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// The event is a message in PostgreSQL's WAL, and no row of the transaction. The relay makes a row of it.
func ExamplePublisherConfig_log() {
	db := newExampleDatabaseWithLog()
	defer db.End()
	ctx, stop := context.WithCancel(context.Background())
	broker, ended := newExampleBroker(), make(chan error, 1)
	relay, err := outbox.NewRelay(db.pool, broker, outbox.RelayConfig{Schema: db.schema, Store: outbox.Log})
	if err != nil {
		panic(err)
	}
	go func() { ended <- relay.Run(ctx) }()
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.schema, Store: outbox.Log})
	if err != nil {
		panic(err)
	}

	publish := func() error {
		return pgtx.Run(ctx, db.pool, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `insert into labours (id, completed_at) values ($1, now())`, "l-7"); err != nil {
				return err
			}
			msg := message.NewMessageWithContext(ctx, outbox.NewID(), []byte(`{"labour":"l-7"}`))
			transport.SetKey(msg, "l-7")
			return events.Publish("labour.completed", msg)
		})
	}
	err = publish()
	for errors.Is(err, outbox.ErrNoLog) { // the relay has not created its slot yet
		time.Sleep(10 * time.Millisecond)
		err = publish()
	}
	fmt.Println(err)
	fmt.Println(<-broker)
	stop()
	fmt.Println(<-ended)
	// Output:
	// <nil>
	// labour.completed l-7 {"labour":"l-7"}
	// <nil>
}
