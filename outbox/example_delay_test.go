package outbox_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// A reminder in a day, unless the labour is completed before: both in the transaction of what they belong to.
func ExampleSetDeliverAfter() {
	db := newExampleDatabase()
	defer db.End()
	ctx := context.Background()
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.schema})
	if err != nil {
		panic(err)
	}

	reminder := outbox.NewID() // to be kept with the labour
	err = pgtx.Run(ctx, db.pool, func(ctx context.Context, _ pgx.Tx) error {
		msg := message.NewMessageWithContext(ctx, reminder, []byte(`{"labour":"l-7"}`))
		outbox.SetDeliverAfter(msg, 24*time.Hour)
		return events.Publish("labour.overdue", msg)
	})
	fmt.Println(err)

	err = pgtx.Run(ctx, db.pool, func(ctx context.Context, _ pgx.Tx) error {
		cancelled, err := events.Cancel(ctx, reminder)
		fmt.Println("cancelled:", cancelled)
		return err
	})
	fmt.Println(err)
	// Output:
	// <nil>
	// cancelled: true
	// <nil>
}
