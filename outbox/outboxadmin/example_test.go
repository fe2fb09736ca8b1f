package outboxadmin_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
)

// An operator looks at an outbox without a relay, finds an event in it, and retries what has failed.
func Example() {
	db := devtest.Example()
	defer db.End()
	ctx := db.Context()
	pool, schema := db.Database()
	if err := outbox.Migrate(ctx, pool, schema); err != nil {
		panic(err)
	}
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	if err != nil {
		panic(err)
	}
	id := outbox.NewID()
	err = pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
		return events.Publish("labour.completed", message.NewMessageWithContext(ctx, id, []byte(`{"labour":"l-7"}`)))
	})
	if err != nil {
		panic(err)
	}

	report, err := outboxadmin.Inspect(ctx, pool, schema)
	if err != nil {
		panic(err)
	}
	fmt.Println(report.Pending, "pending,", report.Failed["dead"], "dead,", len(report.Relays), "relays")

	found, err := outboxadmin.Find(ctx, pool, schema, id)
	if err != nil {
		panic(err)
	}
	fmt.Println(found[0].State, "for", found[0].Topic)

	n, err := outboxadmin.Retry(ctx, pool, schema, outboxadmin.Selection{Topic: "labour.completed"}, outboxadmin.By{Actor: "oncall", Note: "the topic was missing"})
	if err != nil {
		panic(err)
	}
	fmt.Println(n, "failed events will be retried")
	// Output:
	// 1 pending, 0 dead, 0 relays
	// pending for labour.completed
	// 0 failed events will be retried
}
