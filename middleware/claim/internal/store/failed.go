package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

// claim_failed holds events that were not handled. Each change of an event is a transaction under its claim's advisory lock. A
// change that affects the order of a key also holds the lock of the key's row.

const (
	// maxError is the maximum length of a stored error, in bytes.
	maxError = 8000
	// sweepEvery is the time between two sweeps for rows of events that have succeeded elsewhere.
	sweepEvery = time.Minute
)

// failedStatements are the statements for failed events.
type failedStatements struct {
	begin, lock, processed, flush, row, keep, record, block, key, room, unlimited, sweep string // recording

	lease, next, back, stuck, claim, retry, done, promote, free, identify string // retrying
}

func newFailedStatements(query func(name string) string) failedStatements {
	q := func(name string) string { return query("failed_" + name) }
	return failedStatements{
		begin: q("begin"), lock: q("lock"), processed: q("processed"), flush: q("flush"), row: q("row"), keep: q("keep"), record: q("record"),
		block: q("block"), key: q("key"), room: q("room"), unlimited: q("unlimited"), sweep: q("sweep"),
		lease: q("lease"), next: q("next"), back: q("back"), stuck: q("stuck"), claim: q("claim"), retry: q("retry"),
		done: q("done"), promote: q("promote"), free: q("free"), identify: q("identify"),
	}
}

// States of claim_failed.
const (
	StateNacked   = "nacked"
	StateRetrying = "retrying"
	StateBlocked  = "blocked"
	StateDead     = "dead"

	StateIgnored = "ignored" // it has no row
)

// Reasons why an event waits without a failure.
const (
	reasonIdentified = "identified" // it had no usable ID, and waits under the ID that was found
	reasonBlocked    = "blocked"
)

// Event is what is kept of a message.
type Event struct {
	Key              Key
	Record           pgtype.UUID
	Handler, Topic   string
	Headers, Payload []byte
	Row              int64 // of claim_failed, if the event is retried from there; 0: the broker delivered it
	Malformed        bool  // it had no usable ID
}

// Verdict is the decision about an event.
type Verdict struct {
	State    string // "": the event is settled already, and nothing is kept
	Reason   string
	Attempts int
	Delay    time.Duration // until the next attempt
}

// Acks reports whether the message may be acked, because the event is kept here.
func (v Verdict) Acks() bool { return v.State != StateNacked }

// here identifies this process for operators.
var here = func() string {
	host, _ := os.Hostname() // an empty name is good enough
	return host + "/" + strconv.Itoa(os.Getpid())
}()

// ErrFree means that the key is no longer blocked.
var ErrFree = errors.New("the key is free")

// Keep records the verdict that decide returns for the number of earlier attempts. before is called in the transaction, before its
// commit. If the event has been settled elsewhere in the meantime, the verdict's state is "". If patient is set, Keep tries again until
// ctx ends, because the event itself may have crashed the server.
func (s *Postgres) Keep(ctx context.Context, e Event, patient bool, failure string, decide func(attempts int) Verdict, before func(context.Context, Verdict) error) (v Verdict, err error) {
	for {
		v, err = s.keep(ctx, e, failure, decide, before)
		if err == nil || !patient || errors.Is(err, ErrContended) || errors.Is(err, pgtx.ErrOutcomeUnknown) {
			return v, err
		}
		select {
		case <-ctx.Done():
			return v, err
		case <-time.After(keepAgain):
		}
	}
}

func (s *Postgres) keep(ctx context.Context, e Event, failure string, decide func(attempts int) Verdict, before func(context.Context, Verdict) error) (v Verdict, err error) {
	err = s.record(ctx, e, func(ctx context.Context, consumer int16, attempts int) error {
		v = decide(attempts)
		if err := before(ctx, v); err != nil {
			return err
		}
		return s.write(ctx, e, consumer, v, failure)
	})
	return v, err
}

// Block keeps an event that is blocked by an earlier event of its key. most limits the blocked events of the key (0: no limit). At
// the limit, Block returns a FullError. It returns ErrFree if the key is no longer blocked, and false if the event has been settled
// elsewhere in the meantime.
func (s *Postgres) Block(ctx context.Context, e Event, most int) (blocked bool, err error) {
	var full, since bool
	err = s.record(ctx, e, func(ctx context.Context, consumer int16, attempts int) error {
		tx, _ := pgtx.From(ctx)
		var held bool
		b := &pgx.Batch{}
		b.Queue(s.failed.key, consumer, e.Key.Order).QueryRow(func(row pgx.Row) error { return row.Scan(&held) })
		if most > 0 {
			b.Queue(s.failed.room, consumer, e.Key.Order, most).QueryRow(optionalRow(&full, &since))
		} else {
			b.Queue(s.failed.unlimited, consumer, e.Key.Order)
		}
		switch err := tx.SendBatch(ctx, b).Close(); {
		case errors.Is(err, pgx.ErrNoRows):
			return ErrFree
		case err != nil, full: // full must be committed
			return err
		}
		blocked = true
		return s.write(ctx, e, consumer, Verdict{State: StateBlocked, Reason: reasonBlocked, Attempts: attempts}, "")
	})
	if err == nil && full {
		err = FullError{Since: since}
	}
	return blocked, err
}

// FullError means that the limit of blocked events of a key is reached.
type FullError struct {
	Since bool // this event is the first one over the limit
}

func (FullError) Error() string { return "as many events of this key are blocked as may be" }

// record calls fn in a transaction that holds the claim, unless the event has been settled in the meantime.
func (s *Postgres) record(ctx context.Context, e Event, fn func(ctx context.Context, consumer int16, attempts int) error) error {
	consumer, err := s.Consumer(ctx, e.Key.Consumer)
	if err != nil {
		return err
	}
	err = pgtx.Run(ctx, s.Pool, func(ctx context.Context, tx pgx.Tx) error {
		var (
			processed bool
			id        int64
			state     string
			attempts  int
		)
		b := &pgx.Batch{}
		b.Queue(s.failed.begin)
		b.Queue(s.failed.lock, e.Key.Lock(s.Schema))
		b.Queue(s.failed.processed, consumer, e.Record, e.Key.Hash()).QueryRow(func(row pgx.Row) error { return row.Scan(&processed) })
		b.Queue(s.failed.row, consumer, e.Record).QueryRow(optionalRow(&id, &state, &attempts))
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		broughtBack := e.Row != 0
		switch {
		case broughtBack && (id != e.Row || state != StateRetrying): // an operator has decided, or another process has handled it
			return nil
		case !broughtBack && (processed || id != 0 && state != StateNacked):
			return pgtx.Queue(ctx, s.failed.flush) // the message will be acked, and the claim of the other delivery may not be on disk
		}
		return fn(ctx, consumer, attempts)
	}, pgtx.Isolation(pgx.ReadCommitted))
	if err == nil {
		s.sweep(ctx)
	}
	return lockTimeout(err)
}

// ignore queues the statements that settle an event as if it had been handled.
func (s *Postgres) ignore(ctx context.Context, e Event, consumer int16) error {
	if e.Row != 0 {
		return s.takeAway(ctx, e, consumer)
	}
	return errors.Join(
		pgtx.Queue(ctx, s.failed.record, consumer, e.Record, e.Key.Hash()),
		pgtx.Queue(ctx, s.sql.done, consumer, e.Record),
	)
}

// sweep deletes rows of events that have succeeded elsewhere, at most once per sweepEvery, after a failure is recorded. The next
// sweep retries what fails here.
func (s *Postgres) sweep(ctx context.Context) {
	last := s.swept.Load()
	if now := time.Now().UnixNano(); now-last < int64(sweepEvery) || !s.swept.CompareAndSwap(last, now) {
		return
	}
	var next *time.Time
	if err := s.Pool.QueryRow(ctx, s.failed.sweep, time.UnixMicro(s.sweptTo.Load())).Scan(&next, nil); err != nil {
		return
	}
	s.sweptTo.Store(0)
	if next != nil {
		s.sweptTo.Store(next.UnixMicro())
	}
}

// lockTimeout converts a lock_timeout into ErrContended.
func lockTimeout(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "55P03" {
		return fmt.Errorf("%w: %w", ErrContended, err)
	}
	return err
}

// write queues the statements that keep an event.
func (s *Postgres) write(ctx context.Context, e Event, consumer int16, v Verdict, failure string) error {
	var due *int64
	if v.State == StateRetrying {
		ms := v.Delay.Milliseconds()
		due = &ms
	}
	if v.State == StateIgnored {
		return s.ignore(ctx, e, consumer)
	}
	headers, payload := e.Headers, e.Payload
	if v.State == StateNacked {
		headers, payload = nil, nil // the broker keeps them
	}
	err := pgtx.Queue(ctx, s.failed.keep, consumer, e.Record, inbox.Printable(e.Key.EventID, maxError), e.Key.Order, v.State, v.Attempts, v.Reason,
		inbox.Printable(failure, maxError), failure != "", here, inbox.Printable(e.Handler, maxError), inbox.Printable(e.Topic, maxError), headers, payload, due)
	if err != nil {
		return err
	}
	switch {
	case v.State == StateNacked:
		return nil
	case e.Row != 0: // it has its record, and already blocks its key
		return nil
	case e.Key.Order != "":
		if err := pgtx.Queue(ctx, s.failed.block, consumer, e.Key.Order); err != nil {
			return err
		}
	}
	return pgtx.Queue(ctx, s.failed.record, consumer, e.Record, e.Key.Hash())
}
