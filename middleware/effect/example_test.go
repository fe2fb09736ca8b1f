package effect_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// One text message for each event, inside a claim: the response is written in the claim's transaction, after Value. The
// handler fails behind the first call, and the event is delivered again: the family gets one text.
func ExampleValue() {
	t := devtest.Example()
	defer t.End()
	pool, schema := t.Database()
	for _, migrate := range []func(context.Context, pgtx.DB, string) error{outbox.Migrate, claim.Migrate, effect.Migrate} {
		if err := migrate(t.Context(), pool, schema); err != nil {
			panic(err)
		}
	}
	if _, err := pool.Exec(t.Context(), `create table sent (event_id text, number text)`); err != nil {
		panic(err)
	}
	c, err := claim.New(claim.NewPostgresStore(pool, claim.Schema(schema)), claim.Config{
		Service:  "labour",
		Consumer: func(string) string { return "notify-parents" },
	})
	if err != nil {
		panic(err)
	}
	ledger, err := effect.New(pool, effect.Config{Service: "labour", Schema: schema})
	if err != nil {
		panic(err)
	}
	defer ledger.Close()

	send := func(context.Context, string) (number string, err error) {
		fmt.Println("the provider sends a text")
		return "text 1", nil
	}
	failure := errors.New("the database is away")
	// For you: router.AddMiddleware(c.Middleware, ledger.Middleware), and ledger.Run beside the router.
	handle := c.Middleware(ledger.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		number, err := effect.Value(ctx, "parents-sms:"+msg.UUID, send, effect.Idempotent())
		if err != nil {
			return nil, err
		}
		if failure != nil {
			defer func() { failure = nil }()
			return nil, failure
		}
		fmt.Println("sent is", number)
		tx, _ := pgtx.From(ctx)
		_, err = tx.Exec(ctx, `insert into sent (event_id, number) values ($1, $2)`, msg.UUID, number)
		return nil, err
	}))
	event := outbox.NewID()
	for range 2 {
		_, err := handle(message.NewMessage(event, nil))
		fmt.Println("handled:", err == nil)
	}
	// Output:
	// the provider sends a text
	// handled: false
	// sent is text 1
	// handled: true
}

// A provider that knows no idempotency keys, but can be asked. What it refused certainly did not happen.
func ExampleReconcile() {
	type sms interface {
		Send(ctx context.Context, reference, text string) (status int, err error)
		Find(ctx context.Context, reference string) (status int, err error)
	}
	notify := func(ctx context.Context, provider sms, eventID string) error {
		return effect.Once(ctx, "parents-sms:"+eventID, func(ctx context.Context, key string) error {
			status, err := provider.Send(ctx, key, "congratulations")
			if err == nil && status == http.StatusUnprocessableEntity {
				return claim.Permanent(effect.NotDone(errors.New("the number does not exist")))
			}
			return err // a timeout: nobody knows
		}, effect.Reconcile(func(ctx context.Context, i effect.Intent) (effect.Outcome, error) {
			switch status, err := provider.Find(ctx, i.IdempotencyKey); {
			case err != nil:
				return effect.Unknown(), err
			case status == http.StatusNotFound:
				return effect.WasNotDone(), nil
			}
			return effect.WasDone(nil), nil
		}))
	}
	_ = notify
}

// A provider that takes a charge and tells its outcome later, by a webhook. The event waits for that, and is then handled with the outcome.
func ExampleLedger_Complete() {
	t := devtest.Example()
	defer t.End()
	pool, schema := t.Database()
	if err := effect.Migrate(t.Context(), pool, schema); err != nil {
		panic(err)
	}
	ledger, err := effect.New(pool, effect.Config{Service: "shop", Schema: schema})
	if err != nil {
		panic(err)
	}
	defer ledger.Close()

	handle := func(ctx context.Context) error {
		status, err := effect.Value(ctx, "charge:order 7", func(context.Context, string) (string, error) {
			fmt.Println("the provider takes the charge")
			return "", effect.Pending(24 * time.Hour) // after that the effect is in doubt
		})
		if err == nil {
			fmt.Println("the charge was", status)
		}
		return err
	}
	webhook := func(ctx context.Context, status string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { // with what else it writes
			return ledger.Complete(ctx, tx, "charge:order 7", effect.WasDone(status))
		})
	}
	ctx := effect.With(t.Context(), ledger)
	fmt.Println(errors.Is(handle(ctx), effect.ErrPending))
	fmt.Println(webhook(ctx, "declined"))
	fmt.Println(webhook(ctx, "declined"))
	fmt.Println(handle(ctx))
	// Output:
	// the provider takes the charge
	// true
	// <nil>
	// <nil>
	// the charge was declined
	// <nil>
}
