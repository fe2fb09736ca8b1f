package main

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/claim/redisclaim"
	"github.com/millrace-go/millrace/pgtx"
)

// lockTTL is how soon another consumer may take over a killed consumer's locks in Redis.
const lockTTL = 2 * time.Second

// consumer books each payment in two books: balances with a claim in PostgreSQL, points with a claim in Redis.
func consumer(ctx context.Context, p *stage.Part) error {
	o, err := parse(p.Args, io.Discard)
	if err != nil {
		return err
	}
	disconnect, err := p.Connect(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	client := redis.NewClient(&redis.Options{Addr: p.Redis, ContextTimeoutEnabled: true}) // redisclaim relies on deadlines
	defer func() { _ = client.Close() }()

	record := claim.NewPostgresStore(p.Pool, claim.Schema(p.Schema))
	fast := redisclaim.Config{Prefix: p.Schema, TTL: lockTTL, Record: record, Logger: p.Log}
	if o.window > 0 {
		fast.Record, fast.Retention, fast.TTL = nil, o.window, min(lockTTL, o.window)
	}
	locks, err := redisclaim.New(client, fast)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(p.Log))
	if err != nil {
		return err
	}
	for book, store := range map[string]claim.Store{"balance": record, "points": locks} {
		name := "book-" + book
		sub, err := p.Subscriber(name, paymentMade, claim.Concurrency(p.Pool, 2))
		if err != nil {
			return err
		}
		guard, err := claim.New(store, claim.Config{Service: "payments", Logger: p.Log})
		if err != nil {
			return err
		}
		handler := router.AddConsumerHandler(name, p.Topic(paymentMade), sub, func(msg *message.Message) error { return bookPayment(p, msg, book) })
		handler.AddMiddleware(p.CountDeliveries)
		if o.without != "claim" {
			handler.AddMiddleware(guard.Middleware)
		}
	}
	p.Count("subscribed")
	return router.Run(ctx)
}

// bookPayment adds the payment to its account. Run joins the claim's transaction, if there is one. With Redis alone there is none.
func bookPayment(p *stage.Part, msg *message.Message, book string) error {
	var made payment
	if err := json.Unmarshal(msg.Payload, &made); err != nil {
		return claim.Permanent(err)
	}
	p.Count("booked")
	return pgtx.Run(msg.Context(), p.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into bookings (book, payment_id) values ($1, $2)`, book, made.ID); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `insert into accounts as a (account, `+book+`) values ($1, $2)
			on conflict (account) do update set `+book+` = a.`+book+` + excluded.`+book, made.Account, made.Cents)
		return err
	})
}
