package claim_test

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// Every handler of the router becomes idempotent: its writes, and the message that it returns, happen once per event.
func ExampleClaim_Middleware() {
	consume := func(router *message.Router, pool *pgxpool.Pool, subscriber message.Subscriber, events *outbox.Publisher) error {
		c, err := claim.New(claim.NewPostgresStore(pool), claim.Config{})
		if err != nil {
			return err
		}
		router.AddMiddleware(c.Middleware)
		router.AddHandler("notify-family", "labour.completed", subscriber, "notification.sent", events,
			func(msg *message.Message) ([]*message.Message, error) {
				tx, ok := pgtx.From(msg.Context())
				if !ok {
					return nil, errors.New("no claim around this handler")
				}
				if _, err := tx.Exec(msg.Context(), `insert into notifications (event_id) values ($1)`, msg.UUID); err != nil {
					return nil, err
				}
				return message.Messages{message.NewMessage(outbox.NewID(), msg.Payload)}, nil
			})
		return nil
	}
	_ = consume
}
