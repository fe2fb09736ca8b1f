package brokermigration_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
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

// named is a broker for an example.
type named struct {
	transport.Transport
	name string
}

func (n named) Name() string { return n.name }

// A program makes the next step, or says why it is not safe.
func ExampleStep() {
	t := devtest.Example()
	defer t.End()
	pool, schema := t.Database()
	ctx := context.Background()
	if err := outbox.Migrate(ctx, pool, schema); err != nil {
		panic(err)
	}
	query := brokermigration.Query{Pool: pool, Schema: schema, From: named{name: "pubsub"}, To: named{name: "kafka"}}
	s, err := brokermigration.Step(ctx, query, false, "the deployment")
	if errors.Is(err, brokermigration.ErrBlocked) {
		fmt.Println("phase", s.Phase)
		for _, why := range s.Next.Blocked {
			fmt.Println(why)
		}
	}
	// Output:
	// phase consume
	// no process takes part in the migration: start processes with broker: pubsub and migration: {to: kafka}
}
