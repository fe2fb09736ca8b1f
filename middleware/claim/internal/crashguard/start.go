package crashguard

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

// AloneError means that a message waited in vain to run alone. While it waited, other messages could not start, so it must not be
// redelivered at once.
type AloneError struct{ error }

func (e AloneError) Unwrap() error { return e.error }

// Start is a message that a process has started to handle.
type Start struct {
	// Over means that the handler's transaction is committed. Set it before End.
	Over bool

	guard *Guard
	leave func() // leaves the gate; nil without Run

	noted    bool
	consumer int16
	record   pgtype.UUID
	run      int64
	starts   int  // how often it was started alone, including this time
	killer   bool // it was started alone too often, so it must not run
	queued   bool // the handler's transaction clears the mark
}

// Begin starts a message. Unless it returns an error, End must follow. It waits until the process is registered, and then until the
// message may run, alone if necessary. Each wait is at most the handler's timeout, and does not count as the handler's time.
func (g *Guard) Begin(ctx context.Context, key store.Key) (*Start, error) {
	st := &Start{guard: g}
	now, err := g.life.take(ctx, g.cfg.Timeout(key.Consumer))
	if err != nil {
		return nil, err
	}
	switch {
	case now.run == 0:
		return st, nil
	case !now.suspicious:
		st.leave, err = g.Gate.enter(ctx)
	default:
		err = st.suspect(ctx, key, now)
	}
	if err != nil {
		st.End(ctx)
		return nil, err
	}
	return st, nil
}

// suspect marks the message and waits until it may run.
func (st *Start) suspect(ctx context.Context, key store.Key, now standing) (err error) {
	ctx, cancel := context.WithTimeout(ctx, st.guard.cfg.Timeout(key.Consumer))
	defer cancel()
	s := st.guard.cfg.Store
	if st.consumer, err = s.Consumer(ctx, key.Consumer); err != nil {
		return err
	}
	st.record, st.run = key.Record(), now.run
	fresh, run, starts, err := st.note(ctx, s)
	if err != nil {
		return fmt.Errorf("mark the event before it is handled: %w", err)
	}
	st.noted = fresh
	if run == now.run || now.alive[run] { // not fresh: another process is handling it, so the mark is theirs, and the claim will fail
		st.leave, err = st.guard.Gate.enter(ctx)
		return err
	}
	if starts >= st.guard.cfg.MaxStarts {
		st.starts, st.killer = starts, true
		st.run, st.noted = run, true
		return nil
	}
	if st.leave, err = st.guard.Gate.enterAlone(ctx, st.guard.cfg.Timeout(key.Consumer)+st.guard.Pace.Slack); err != nil {
		return AloneError{fmt.Errorf("%w: it was being handled when a process was killed, and must run alone: %w", store.ErrContended, err)}
	}
	err = s.Pool.QueryRow(ctx, store.Query("start_alone", s.Schema), st.consumer, st.record, now.run, run).Scan(&st.starts)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: another process was quicker", store.ErrContended)
	}
	if err != nil {
		return fmt.Errorf("mark the event before it is handled: %w", err)
	}
	st.noted = true
	return nil
}

// note marks the event unless it has a mark. It returns whether the mark is new, which process it belongs to, and how often the
// event was started alone.
func (st *Start) note(ctx context.Context, s *store.Postgres) (fresh bool, run int64, starts int, err error) {
	for range 3 {
		err = s.Pool.QueryRow(ctx, store.Query("start_note", s.Schema), st.consumer, st.record, st.run).Scan(&fresh, &run, &starts)
		if !errors.Is(err, pgx.ErrNoRows) {
			break
		}
	}
	return fresh, run, starts, err
}

// Handler clears the mark in the handler's transaction. While the process is suspicious, the event is claimed before its handler
// runs, because the mark may belong to another process that holds the claim.
func (st *Start) Handler(fn func(context.Context) error) func(context.Context) error {
	if st.run == 0 {
		return fn
	}
	return func(ctx context.Context) error {
		if err := pgunit.Begin(ctx); err != nil {
			return err
		}
		if err := fn(ctx); err != nil || !st.noted {
			return err
		}
		// End clears the mark if the statement cannot be queued.
		st.queued = pgtx.Queue(ctx, store.Query("start_over", st.guard.cfg.Store.Schema), st.consumer, st.record, st.run) == nil
		return nil
	}
}

// End clears the mark, whatever the handler's outcome: the process has survived.
func (st *Start) End(ctx context.Context) {
	defer st.guard.life.done()
	if st.leave != nil {
		defer st.leave()
	}
	if !st.noted || st.queued && st.Over {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeTimeout)
	defer cancel()
	_, err := st.guard.cfg.Store.Pool.Exec(ctx, store.Query("start_over", st.guard.cfg.Store.Schema), st.consumer, st.record, st.run)
	if err != nil { // if a process is killed later, the event is run alone once
		st.guard.cfg.Logger.WarnContext(ctx, "clear the mark of an event", "error", err)
	}
}

// Killer reports whether the event was started alone too often, and how often. Such an event must not run.
func (st *Start) Killer() (starts int, is bool) { return st.starts, st.killer }

// KeepNote keeps the mark when the start ends, because nothing was decided about the event.
func (st *Start) KeepNote() { st.noted = false }
