package claim

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

// reasonKilled is why an event is a dead letter that ended its processes.
const reasonKilled = "killed"

// An event may kill the process that handles it: it exits, runs out of memory, or dies in a goroutine of the handler's.
// A process that comes after one that was killed notes events before it runs their handlers. What is noted and was not
// struck out was in hand at a death, so it is run alone: dies the process again, it is known of what.

// aloneError means that a message waited in vain until it may run alone. It kept others out for as long, so it must not be
// back at once.
type aloneError struct{ error }

func (e aloneError) Unwrap() error { return e.error }

// start is a message that a process has in hand.
type start struct {
	claim *Claim
	leave func() // the gate; nil outside of Run

	store    *store.Postgres // nil: it is not noted
	consumer int16
	record   pgtype.UUID
	run      int64
	starts   int  // how often it was begun alone, this time included
	killer   bool // that was too often: it must not run
	queued   bool // the note is struck out with the handler's transaction
	over     bool // which has been committed
}

// begin takes the message in hand, unless the error is not nil; end must follow. It waits, each at most HandlerTimeout,
// until the process is registered, and until the message may run, alone if need be: neither is the handler's time.
func (c *Claim) begin(ctx context.Context, key Key) (*start, error) {
	st := &start{claim: c}
	now, err := c.life.take(ctx, c.cfg.timeout(key.Consumer))
	if err != nil {
		return nil, err
	}
	switch {
	case now.run == 0:
		return st, nil
	case !now.suspicious:
		st.leave, err = c.hands.enter(ctx)
	default:
		err = st.suspect(ctx, key, now)
	}
	if err != nil {
		st.end(ctx)
		return nil, err
	}
	return st, nil
}

// suspect notes the message, and waits until it may run.
func (st *start) suspect(ctx context.Context, key Key, now standing) (err error) {
	ctx, cancel := context.WithTimeout(ctx, st.claim.cfg.timeout(key.Consumer))
	defer cancel()
	s := st.claim.postgres
	if st.consumer, err = s.Consumer(ctx, key.Consumer); err != nil {
		return err
	}
	st.record, st.run = store.Key(key).Record(), now.run
	fresh, run, starts, err := st.note(ctx, s)
	if err != nil {
		return fmt.Errorf("note the event before it is handled: %w", err)
	}
	if fresh {
		st.store = s
	}
	if run == now.run || now.alive[run] { // not fresh: somebody has it in hand, as the claim will tell; the note is theirs
		st.leave, err = st.claim.hands.enter(ctx)
		return err
	}
	if starts >= st.claim.cfg.MaxStarts {
		st.starts, st.killer = starts, true
		st.run, st.store = run, s
		return nil
	}
	if st.leave, err = st.claim.hands.enterAlone(ctx, st.claim.cfg.timeout(key.Consumer)+st.claim.pace.slack); err != nil {
		return aloneError{fmt.Errorf("%w: it was in hand when a process was killed and must run alone: %w", ErrContended, err)}
	}
	err = s.Pool.QueryRow(ctx, store.Query("start_alone", s.Schema), st.consumer, st.record, now.run, run).Scan(&st.starts)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: another process was quicker", ErrContended)
	}
	if err != nil {
		return fmt.Errorf("note the event before it is handled: %w", err)
	}
	st.store = s
	return nil
}

// note notes the event unless it is noted, and returns whether it was not, whose the note is, and how often the event was
// begun alone.
func (st *start) note(ctx context.Context, s *store.Postgres) (fresh bool, run int64, starts int, err error) {
	for range 3 {
		err = s.Pool.QueryRow(ctx, store.Query("start_note", s.Schema), st.consumer, st.record, st.run).Scan(&fresh, &run, &starts)
		if !errors.Is(err, pgx.ErrNoRows) {
			break
		}
	}
	return fresh, run, starts, err
}

// handler strikes the note out in the handler's transaction. After a death the event is claimed before its handler begins: the
// note may be that of another process, which has the claim.
func (st *start) handler(fn func(context.Context) error) func(context.Context) error {
	if st.run == 0 {
		return fn
	}
	return func(ctx context.Context) error {
		if err := Ensure(ctx); err != nil {
			return err
		}
		if err := fn(ctx); err != nil || st.store == nil {
			return err
		}
		// What cannot be queued is struck out afterwards.
		st.queued = pgtx.Queue(ctx, store.Query("start_over", st.store.Schema), st.consumer, st.record, st.run) == nil
		return nil
	}
}

// end strikes the note out, however the handler ended: the process has survived it.
func (st *start) end(ctx context.Context) {
	defer st.claim.life.done()
	if st.leave != nil {
		defer st.leave()
	}
	if st.store == nil || st.queued && st.over {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeTimeout)
	defer cancel()
	_, err := st.store.Pool.Exec(ctx, store.Query("start_over", st.store.Schema), st.consumer, st.record, st.run)
	if err != nil { // then it will be run alone once, should a process be killed
		st.claim.cfg.Logger.WarnContext(ctx, "strike out the note of an event", "error", err)
	}
}

// bury makes a dead letter of an event that was begun alone too often.
func (st *start) bury(ctx context.Context, key Key, msg *message.Message) error {
	reason := fmt.Errorf("the process was killed each of the %d times that it handled this event alone", st.starts)
	if err := st.claim.bury(ctx, key, msg, reasonKilled, reason); err != nil {
		st.store = nil // the note stays
		return st.claim.settle(ctx, key, msg, attempt{err: fmt.Errorf("bury the event: %w", err)})
	}
	st.claim.cfg.Logger.ErrorContext(ctx, "an event is a dead letter because processes were killed while they handled it",
		"consumer", key.Consumer, "event_id", key.EventID, "starts", st.starts)
	return nil
}
