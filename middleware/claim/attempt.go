package claim

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// attempt is what became of a message under its claim.
type attempt struct {
	ran   bool      // the handler was called: what it returned is its own, even ErrCompleted of another claim
	err   error     // nil: the claim is completed
	began time.Time // set by Claim.run
}

// attempt claims the event and calls fn.
func (c *Claim) attempt(ctx context.Context, key Key, _ *message.Message, fn func(ctx context.Context) error) (a attempt) {
	a.err = c.store.Do(ctx, key, func(ctx context.Context) error {
		a.ran = true
		return fn(ctx)
	})
	return a
}
