package claim_test

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

// Every handler of the router becomes idempotent: its writes, and the message that it returns, happen once per event,
// although the broker delivers it twice.
func ExampleClaim_Middleware() {
	t := devtest.Example()
	defer t.End()
	pool, schema := t.Database()
	migrate(t, pool, schema)
	if _, err := pool.Exec(t.Context(), `create table notifications (event_id text not null)`); err != nil {
		panic(err)
	}
	broker, err := memory.New(memory.Config{})
	if err != nil {
		panic(err)
	}
	defer broker.Close() // never fails
	subscriber, err := broker.Subscriber(transport.SubscriberConfig{Consumer: "notify-family", Ordered: true})
	if err != nil {
		panic(err)
	}
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	if err != nil {
		panic(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}

	c, err := claim.New(claim.NewPostgresStore(pool, claim.Schema(schema)), claim.Config{Service: "labour"})
	if err != nil {
		panic(err)
	}
	router.AddMiddleware(c.Middleware)
	finished := make(chan struct{})
	router.AddHandler("notify-family", "labour.completed", subscriber, "notification.sent", events,
		func(msg *message.Message) ([]*message.Message, error) {
			tx, ok := pgtx.From(msg.Context()) // the claim's
			if !ok {
				return nil, errors.New("no claim around this handler")
			}
			if _, err := tx.Exec(msg.Context(), `insert into notifications (event_id) values ($1)`, msg.UUID); err != nil {
				return nil, err
			}
			if string(msg.Payload) == "the last" {
				close(finished)
			}
			return message.Messages{message.NewMessage(outbox.NewID(), msg.Payload)}, nil
		})

	devtest.Run(t, router)
	publisher, err := broker.Publisher()
	if err != nil {
		panic(err)
	}
	first, last := outbox.NewID(), outbox.NewID()
	for _, event := range []*message.Message{
		message.NewMessage(first, []byte("it is a girl")),
		message.NewMessage(first, []byte("it is a girl")),
		message.NewMessage(last, []byte("the last")),
	} {
		transport.SetKey(event, "labour-7") // one after the other
		if err := publisher.Publish("labour.completed", event); err != nil {
			panic(err)
		}
	}
	<-finished
	if err := router.Close(); err != nil { // when the handlers have committed
		panic(err)
	}

	var notified, staged int
	if err := pool.QueryRow(t.Context(), `select (select count(*) from notifications), (select count(*) from outbox)`).
		Scan(&notified, &staged); err != nil {
		panic(err)
	}
	fmt.Printf("3 deliveries of 2 events: %d notifications, %d messages in the outbox\n", notified, staged)
	// Output: 3 deliveries of 2 events: 2 notifications, 2 messages in the outbox
}
