package claim_test

import (
	"encoding/json"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/middleware/claim"
)

// Events whose handler fails are kept in the database and brought back from there: a minute later at most, ten times, then
// they are dead letters. Later events of their key wait behind them; other keys, and the broker, do not.
func ExampleClaim_Subscriber() {
	consume := func(router *message.Router, pool *pgxpool.Pool, subscriber message.Subscriber, h message.NoPublishHandlerFunc) error {
		c, err := claim.New(claim.NewPostgresStore(pool), claim.Config{
			Service:         "labour",
			Ordered:         true,
			MaxAttempts:     10,
			Backoff:         func(attempt int) time.Duration { return min(time.Duration(attempt)*5*time.Second, time.Minute) },
			DeadLetterTopic: "dead-letters",
		})
		if err != nil {
			return err
		}
		router.AddMiddleware(c.Middleware)
		router.AddConsumerHandler("notify-family", "labour.completed", c.Subscriber("notify-family", subscriber), h)
		return nil
	}
	_ = consume
}

// An event that can never be handled becomes a dead letter at once.
func ExamplePermanent() {
	handler := func(msg *message.Message) error {
		var e struct{ LabourID string }
		if err := json.Unmarshal(msg.Payload, &e); err != nil {
			return claim.Permanent(err)
		}
		return nil
	}
	_ = handler
}
