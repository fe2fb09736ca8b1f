package outbox_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

type LabourCompleted struct{ Labour string }

// The publisher below Watermill's event bus, which passes the context on: an event belongs to the transaction in which it
// was published.
func ExamplePublisher_eventBus() {
	db := newExampleDatabase()
	defer db.End()
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.schema})
	if err != nil {
		panic(err)
	}

	bus, err := cqrs.NewEventBusWithConfig(events, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
		OnPublish: func(p cqrs.OnEventSendParams) error {
			if e, ok := p.Event.(LabourCompleted); ok {
				transport.SetKey(p.Message, e.Labour)
			}
			return nil
		},
		Marshaler: cqrs.JSONMarshaler{NewUUID: outbox.NewID, GenerateName: cqrs.StructName},
	})
	if err != nil {
		panic(err)
	}
	err = pgtx.Run(context.Background(), db.pool, func(ctx context.Context, _ pgx.Tx) error {
		return bus.Publish(ctx, LabourCompleted{Labour: "l-7"})
	})
	fmt.Println(err)
	db.printOutbox()
	// Output:
	// <nil>
	// LabourCompleted l-7 {"Labour":"l-7"}
}
