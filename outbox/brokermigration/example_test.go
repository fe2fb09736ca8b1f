package brokermigration_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/brokermigration"
	"github.com/millrace-go/millrace/transport"
)

// A relay without package framework takes part in a migration.
func ExampleNew() {
	run := func(ctx context.Context, pool *pgxpool.Pool, pubsub, kafka transport.Transport) (err error) {
		both, err := brokermigration.New(ctx, pool, pubsub, kafka, brokermigration.Config{Service: "shop"})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, both.Close()) }()
		publisher, err := both.Publisher()
		if err != nil {
			return err
		}
		relay, err := outbox.NewRelay(pool, publisher, outbox.RelayConfig{})
		if err != nil {
			return err
		}
		return relay.Run(ctx)
	}
	_ = run // until the program ends
}

// A program makes the next step, or says why it is not safe.
func ExampleStep() {
	next := func(ctx context.Context, pool *pgxpool.Pool, pubsub, kafka transport.Transport) error {
		s, err := brokermigration.Step(ctx, brokermigration.Query{Pool: pool, From: pubsub, To: kafka}, false, "the deployment")
		if errors.Is(err, brokermigration.ErrBlocked) {
			for _, why := range s.Next.Blocked {
				fmt.Println(why)
			}
		}
		return err
	}
	_ = next
}
