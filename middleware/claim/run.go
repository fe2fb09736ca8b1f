package claim

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/middleware/claim/internal/crashguard"
)

// Run says in the database that this process lives, and keeps its tables, until ctx ends; then it waits for the claims in
// hand, at most a little longer than HandlerTimeout, says that the process has ended cleanly, and returns nil. Start it
// before the router: messages that come before the process is registered wait for that.
//
// Without it claims work, but nothing is done against an event that kills its process, and no old record is dropped. With
// it, a process that finds that another one of its service was killed, within the last hour, notes what it takes in hand, which costs
// each message a round trip, and runs alone what was in hand when a process was killed. After Config.MaxStarts such
// starts that no process has survived the event becomes a dead letter. Events that were in hand beside it lose nothing.
//
// Run holds a connection of its own besides the pool. It returns an error when it cannot start, because the store has no
// PostgreSQL behind it or its schema does not fit, when it runs already, and when handlers did not end.
func (c *Claim) Run(ctx context.Context) error {
	s := c.postgres
	if s == nil {
		return fmt.Errorf("run claim: the store is a %T, with no PostgreSQL behind it: only with claim.NewPostgresStore does Run do anything", c.store)
	}
	err := c.guard.Run(ctx,
		func() (end func(), err error) { return c.observer.Watch(s) },
		func(ctx context.Context) { _ = pgdays.Every(ctx, c.cfg.Logger, "claims", c.housekeep) })
	if err != nil {
		return fmt.Errorf("run claim: %w", err)
	}
	return nil
}

func (c *Claim) housekeep(ctx context.Context) error {
	return errors.Join(c.postgres.Housekeep(ctx, c.cfg.Retention), c.guard.Sweep(ctx))
}

// reasonKilled is why an event is a dead letter that ended its processes.
const reasonKilled = "killed"

// killed makes a dead letter of an event that was begun alone too often.
func (c *Claim) killed(ctx context.Context, key Key, msg *message.Message, st *crashguard.Start, starts int) error {
	reason := fmt.Errorf("the process was killed each of the %d times that it handled this event alone", starts)
	if err := c.bury(ctx, key, msg, reasonKilled, reason); err != nil {
		st.KeepNote()
		return c.settle(ctx, key, msg, attempt{err: fmt.Errorf("bury the event: %w", err)})
	}
	c.cfg.Logger.ErrorContext(ctx, "an event is a dead letter because processes were killed while they handled it",
		"consumer", key.Consumer, "event_id", key.EventID, "starts", starts)
	return nil
}
