package redisclaim_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/claim/redisclaim"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport/memory"
)

// Redis alone: duplicates are absorbed for three days, and the effect happens at least once. What the handler returns goes
// to the broker before the event is marked as completed.
func Example_alone() {
	t := devtest.Example()
	defer t.End()
	broker, err := memory.New(memory.Config{})
	if err != nil {
		panic(err)
	}
	defer broker.Close() // never fails
	publisher, err := broker.Publisher()
	if err != nil {
		panic(err)
	}
	client := devtest.Redis(t) // for you: redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	store, err := redisclaim.New(client, redisclaim.Config{
		Prefix: devtest.Topic(t), Retention: 72 * time.Hour, Publisher: publisher,
	})
	if err != nil {
		panic(err)
	}
	c, err := claim.New(store, claim.Config{Service: "labour", Consumer: func(string) string { return "notify-family" }})
	if err != nil {
		panic(err)
	}

	handle := c.Middleware(func(msg *message.Message) ([]*message.Message, error) { // for you: router.AddMiddleware(c.Middleware)
		fmt.Println("handling", string(msg.Payload))
		return nil, nil
	})
	for range 2 {
		if _, err := handle(message.NewMessage("event-1", []byte("it is a girl"))); err != nil {
			panic(err)
		}
		fmt.Println("delivered")
	}
	// Output:
	// handling it is a girl
	// delivered
	// delivered
}

// Redis in front of PostgreSQL: duplicates that arrive together are told apart in Redis, and the effect happens once,
// whatever Redis loses.
func Example_inFrontOfARecord() {
	consume := func(ctx context.Context, router *message.Router, pool *pgxpool.Pool, subscriber message.Subscriber) error {
		client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
		store, err := redisclaim.New(client, redisclaim.Config{Record: claim.NewPostgresStore(pool)})
		if err != nil {
			return err
		}
		c, err := claim.New(store, claim.Config{Service: "labour"})
		if err != nil {
			return err
		}
		router.AddMiddleware(c.Middleware)
		router.AddConsumerHandler("notify-family", "labour.completed", subscriber, func(msg *message.Message) error {
			tx, ok := pgtx.From(msg.Context())
			if !ok {
				return errors.New("no claim around this handler")
			}
			_, err := tx.Exec(msg.Context(), `insert into notifications (event_id) values ($1)`, msg.UUID)
			return err
		})
		return router.Run(ctx)
	}
	_ = consume
}
