package outbox_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// A key that is no row: no lock of the transaction's puts the events of two such transactions in order, so they ask for
// one. It costs no round trip.
func ExamplePublisher_LockKey() {
	db := newExampleDatabase()
	defer db.End()
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.schema})
	if err != nil {
		panic(err)
	}

	err = pgtx.Run(context.Background(), db.pool, func(ctx context.Context, _ pgx.Tx) error {
		msg := message.NewMessageWithContext(ctx, outbox.NewID(), []byte(`{"room":3}`))
		transport.SetKey(msg, "ward-2")
		return errors.Join(events.LockKey(ctx, "ward-2"), events.Publish("room.assigned", msg))
	})
	fmt.Println(err)
	db.printOutbox()
	// Output:
	// <nil>
	// room.assigned ward-2 {"room":3}
}
