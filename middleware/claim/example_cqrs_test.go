package claim_test

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

type (
	LabourCompleted  struct{ Labour string }
	NotificationSent struct{ Labour string }
)

// Handlers of Watermill's CQRS component become idempotent one by one. An event that a handler publishes through a bus
// over the outbox, with its context, belongs to its transaction.
func ExampleClaim_OnEvent() {
	consume := func(c *claim.Claim, router *message.Router, subscriber message.Subscriber, events *outbox.Publisher) error {
		marshaler := cqrs.JSONMarshaler{NewUUID: outbox.NewID} // by default it mints UUIDv4, which cost the record more
		bus, err := cqrs.NewEventBusWithConfig(events, cqrs.EventBusConfig{
			GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
			Marshaler:            marshaler,
		})
		if err != nil {
			return err
		}
		processor, err := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
			GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return p.EventName, nil },
			SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				return subscriber, nil
			},
			OnHandle:  c.OnEvent,
			Marshaler: marshaler,
		})
		if err != nil {
			return err
		}
		return processor.AddHandlers(cqrs.NewEventHandler("notify-family", func(ctx context.Context, e *LabourCompleted) error {
			tx, ok := pgtx.From(ctx)
			if !ok {
				return errors.New("no claim around this handler")
			}
			if _, err := tx.Exec(ctx, `insert into notifications (labour) values ($1)`, e.Labour); err != nil {
				return err
			}
			return bus.Publish(ctx, NotificationSent(*e))
		}))
	}
	_ = consume
}
