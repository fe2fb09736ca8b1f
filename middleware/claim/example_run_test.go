package claim_test

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
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
