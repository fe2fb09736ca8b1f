package claim

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/middleware/claim/internal/crashguard"
)

// Run registers this process in the database and maintains the store's tables until ctx ends. Then it waits for the claims in
// flight, a little longer than HandlerTimeout at most, removes the registration, and returns nil. Start Run before the
// router: messages that arrive before the process is registered wait.
//
// Without Run claims work, but poison messages are not stopped and old records are not dropped. With it, a process that finds
// that another process of its service was killed within the last hour marks each message before its handler, which costs a
// round trip. A message that was in flight when a process was killed runs alone. If it kills Config.MaxStarts processes that
// way, it becomes a dead letter. Other events that were in flight at the time lose no attempt.
//
// Run holds one connection of its own beside the pool. It returns an error if the store has no PostgreSQL behind it, if the
// schema does not fit, if Run is running already, or if handlers did not end.
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
	return errors.Join(c.postgres.Housekeep(ctx, c.cfg.Service, c.cfg.Retention), c.guard.Sweep(ctx))
}

// reasonKilled is the reason of dead letters whose events killed their processes.
const reasonKilled = "killed"

// killed makes a dead letter of an event that has killed too many processes while it ran alone.
func (c *Claim) killed(ctx context.Context, key Key, msg *message.Message, st *crashguard.Start, starts int) error {
	reason := fmt.Errorf("the process was killed each of the %d times that it handled this event alone", starts)
	dead, err := c.bury(ctx, key, msg, reasonKilled, reason)
	switch {
	case err != nil:
		st.KeepNote()
		return c.settle(ctx, key, msg, attempt{err: fmt.Errorf("bury the event: %w", err)})
	case !dead:
		return c.duplicate(ctx, key)
	}
	c.cfg.Logger.ErrorContext(ctx, "an event is a dead letter because processes were killed while they handled it",
		"consumer", key.Consumer, "event_id", key.EventID, "starts", starts)
	return nil
}
