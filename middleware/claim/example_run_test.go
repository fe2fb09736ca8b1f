package claim_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/middleware/claim"
)

// Run beside the router keeps the tables, and sees to it that an event which kills its process ends in the dead letters.
func ExampleClaim_Run() {
	serve := func(ctx context.Context, c *claim.Claim, router *message.Router) error {
		running, ctx := errgroup.WithContext(ctx)
		running.Go(func() error { return c.Run(ctx) })
		running.Go(func() error { return router.Run(ctx) })
		return running.Wait()
	}
	_ = serve
}

// What failed alike is replayed together, once its cause is mended.
func ExampleReplay() {
	replay := func(ctx context.Context, pool *pgxpool.Pool, actor string) error {
		groups, err := claim.ListGroups(ctx, pool, "", claim.Selection{Consumer: "notify-family"})
		if err != nil {
			return err
		}
		if len(groups) == 0 {
			return errors.New("there are no dead letters")
		}
		r, err := claim.Replay(ctx, pool, "", claim.Selection{Group: groups[0].Group}, claim.By{Actor: actor, Note: "the provider is back"})
		fmt.Printf("%d of %d are tried again\n", r.Done, groups[0].Events)
		return err
	}
	_ = replay
}
