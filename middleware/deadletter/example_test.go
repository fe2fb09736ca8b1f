package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
)

// A handler fails for good, and an operator looks at the dead letter and discards it.
func Example() {
	db := devtest.Example()
	defer db.End()
	ctx := db.Context()
	pool, schema := db.Database()
	for _, migrate := range []func() error{
		func() error { return outbox.Migrate(ctx, pool, schema) },
		func() error { return claim.Migrate(ctx, pool, schema) },
	} {
		if err := migrate(); err != nil {
			panic(err)
		}
	}
	c, err := claim.New(claim.NewPostgresStore(pool, claim.Schema(schema)), claim.Config{
		Service: "labour", Consumer: func(string) string { return "notify-family" }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	handler := c.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, claim.Permanent(errors.New("the family has no address"))
	})
	if _, err := handler(message.NewMessageWithContext(ctx, outbox.NewID(), []byte(`{"labour":"l-7"}`))); err != nil {
		panic(err)
	}

	groups, err := deadletter.ListGroups(ctx, pool, schema, deadletter.Selection{})
	if err != nil {
		panic(err)
	}
	fmt.Println(groups[0].Events, groups[0].Text)
	r, err := deadletter.Discard(ctx, pool, schema, deadletter.Selection{Group: groups[0].Group}, deadletter.By{Actor: "oncall", Note: "they moved away"})
	if err != nil {
		panic(err)
	}
	fmt.Println(r.Done, "discarded")
	// Output:
	// 1 permanent: the family has no address
	// 1 discarded
}

// What failed alike is replayed together, once its cause is fixed.
func ExampleReplay() {
	replay := func(ctx context.Context, pool *pgxpool.Pool, actor string) error {
		groups, err := deadletter.ListGroups(ctx, pool, "", deadletter.Selection{Consumer: "labour/notify-family"})
		if err != nil {
			return err
		}
		if len(groups) == 0 {
			return errors.New("there are no dead letters")
		}
		r, err := deadletter.Replay(ctx, pool, "", deadletter.Selection{Group: groups[0].Group}, deadletter.By{Actor: actor, Note: "the provider is back"})
		fmt.Printf("%d of %d are tried again\n", r.Done, groups[0].Events)
		return err
	}
	_ = replay
}
