package effect_test

import (
	"context"
	"errors"
	"net/http"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/pgtx"
)

// One text message for each event, inside a claim: the response is written in the claim's transaction, after Value.
func ExampleValue() {
	consume := func(ctx context.Context, router *message.Router, pool *pgxpool.Pool, events message.Subscriber,
		send func(ctx context.Context, idempotencyKey string) (number string, err error),
	) error {
		c, err := claim.New(claim.NewPostgresStore(pool), claim.Config{})
		if err != nil {
			return err
		}
		ledger, err := effect.New(pool, effect.Config{})
		if err != nil {
			return err
		}
		defer ledger.Close()
		router.AddMiddleware(c.Middleware, ledger.Middleware)
		router.AddConsumerHandler("notify-parents", "labour.completed", events, func(msg *message.Message) error {
			ctx := msg.Context()
			number, err := effect.Value(ctx, "parents-sms:"+msg.UUID, send, effect.Idempotent())
			if err != nil {
				return err
			}
			tx, _ := pgtx.From(ctx)
			_, err = tx.Exec(ctx, `insert into sent (event_id, number) values ($1, $2)`, msg.UUID, number)
			return err
		})
		running, ctx := errgroup.WithContext(ctx)
		running.Go(func() error { return ledger.Run(ctx) }) // checks, keeps the days, reports doubts
		running.Go(func() error { return router.Run(ctx) })
		return running.Wait()
	}
	_ = consume
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
