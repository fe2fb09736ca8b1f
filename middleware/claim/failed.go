package claim

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

// Events that were not handled are kept in claim_failed. Each change of one is a transaction under its claim's advisory
// lock, and one that affects the order of a key is under the lock of the key's row too.

const (
	// keepTimeout bounds the transaction that records a failure.
	keepTimeout = 10 * time.Second
	// maxError is how many bytes of an error are kept.
	maxError = 8000
	// maxBlocked bounds Config.MaxBlocked: at the limit the events are counted.
	maxBlocked = 1_000_000
	// sweepEvery is how often a store looks for rows of events that have succeeded elsewhere.
	sweepEvery = time.Minute
)

// failedStatements are the store's statements about events that failed.
type failedStatements struct {
	begin, lock, processed, row, keep, record, block, key, room, unlimited, sweep string // recording

	lease, next, back, stuck, claim, retry, done, promote, free, identify string // bringing back
}

func newFailedStatements(query func(name string) string) failedStatements {
	q := func(name string) string { return query("failed_" + name) }
	return failedStatements{
		begin: q("begin"), lock: q("lock"), processed: q("processed"), row: q("row"), keep: q("keep"), record: q("record"),
		block: q("block"), key: q("key"), room: q("room"), unlimited: q("unlimited"), sweep: q("sweep"),
		lease: q("lease"), next: q("next"), back: q("back"), stuck: q("stuck"), claim: q("claim"), retry: q("retry"),
		done: q("done"), promote: q("promote"), free: q("free"), identify: q("identify"),
	}
}

// event is what is kept of a message.
type event struct {
	key              Key
	record           pgtype.UUID
	handler, topic   string
	headers, payload []byte
	row              int64 // of claim_failed, which it was brought back from; 0: the broker delivered it
	malformed        bool  // it had no usable ID
}

// postgresOf returns the PostgreSQL store behind the others, nil if there is none.
func postgresOf(store Store) *PostgresStore {
	for store != nil {
		if s, ok := store.(*PostgresStore); ok {
			return s
		}
		outer, ok := store.(interface{ Unwrap() Store })
		if !ok {
			return nil
		}
		store = outer.Unwrap()
	}
	return nil
}

// withoutPostgres refuses what only PostgreSQL can keep.
func (c Config) withoutPostgres() error {
	var errs []error
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"Ordered", c.Ordered},
		{"MaxAttempts", c.MaxAttempts != 0},
		{"Backoff", c.Backoff != nil},
		{"MaxBlocked", c.MaxBlocked != 0},
		{"DeadLetterTopic", c.DeadLetterTopic != ""},
		{"Retry, or that of a handler,", c.hasPolicies()},
	} {
		if f.set {
			errs = append(errs, fmt.Errorf("Config.%s is set: want a store with PostgreSQL behind it, which alone keeps events that failed", f.name))
		}
	}
	return errors.Join(errs...)
}

// here names this process for people.
var here = func() string {
	host, _ := os.Hostname() // "" will do
	return host + "/" + strconv.Itoa(os.Getpid())
}()

// errFree means that a key is held up no more.
var errFree = errors.New("the key is free")

// keep records what became of an event, as decide finds given the attempts before. before is called in the transaction,
// ahead of its commit. The verdict's state is "" when the event has been settled elsewhere in the meantime.
func (s *PostgresStore) keep(ctx context.Context, e event, failure string, decide func(attempts int) verdict, before func(context.Context, verdict) error) (v verdict, err error) {
	err = s.record(ctx, e, func(ctx context.Context, consumer int16, attempts int) error {
		v = decide(attempts)
		if err := before(ctx, v); err != nil {
			return err
		}
		return s.write(ctx, e, consumer, v, failure)
	})
	return v, err
}

// block keeps an event behind the one that holds up its key, unless most events of the key are blocked already (0: any number may
// be): then it returns a fullError. It returns errFree if nothing holds up the key by now, and reports false when the event has
// been settled elsewhere in the meantime.
func (s *PostgresStore) block(ctx context.Context, e event, most int) (blocked bool, err error) {
	var full, since bool
	err = s.record(ctx, e, func(ctx context.Context, consumer int16, attempts int) error {
		tx, _ := pgtx.From(ctx)
		var held bool
		b := &pgx.Batch{}
		b.Queue(s.failed.key, consumer, e.key.Order).QueryRow(func(row pgx.Row) error { return row.Scan(&held) })
		if most > 0 {
			b.Queue(s.failed.room, consumer, e.key.Order, most).QueryRow(optionalRow(&full, &since))
		} else {
			b.Queue(s.failed.unlimited, consumer, e.key.Order)
		}
		switch err := tx.SendBatch(ctx, b).Close(); {
		case errors.Is(err, pgx.ErrNoRows):
			return errFree
		case err != nil, full: // which is to be committed
			return err
		}
		blocked = true
		return s.write(ctx, e, consumer, verdict{state: stateBlocked, reason: reasonBlocked, attempts: attempts}, "")
	})
	if err == nil && full {
		err = fullError{since}
	}
	return blocked, err
}

// fullError means that as many events of the key are blocked as may be.
type fullError struct {
	since bool // this one is the first that finds no room
}

func (fullError) Error() string { return "as many events of this key are blocked as may be" }

// record calls fn in a transaction that holds the claim, unless the event has been settled in the meantime.
func (s *PostgresStore) record(ctx context.Context, e event, fn func(ctx context.Context, consumer int16, attempts int) error) error {
	consumer, err := s.consumer(ctx, e.key.Consumer)
	if err != nil {
		return err
	}
	err = pgtx.Run(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		var (
			processed bool
			id        int64
			state     string
			attempts  int
		)
		b := &pgx.Batch{}
		b.Queue(s.failed.begin)
		b.Queue(s.failed.lock, lockKey(s.schema, e.key))
		b.Queue(s.failed.processed, consumer, e.record, hashedID(e.key)).QueryRow(func(row pgx.Row) error { return row.Scan(&processed) })
		b.Queue(s.failed.row, consumer, e.record).QueryRow(optionalRow(&id, &state, &attempts))
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		broughtBack := e.row != 0
		switch {
		case broughtBack && (id != e.row || state != stateRetrying): // an operator has decided, or another process has handled it
			return nil
		case !broughtBack && (processed || id != 0 && state != stateNacked):
			return nil
		}
		return fn(ctx, consumer, attempts)
	}, pgtx.Isolation(pgx.ReadCommitted))
	if err == nil {
		s.sweep(ctx)
	}
	return lockTimeout(err)
}

// ignore queues the statements that settle an event as if it had been handled.
func (s *PostgresStore) ignore(ctx context.Context, e event, consumer int16) error {
	if e.row != 0 {
		return s.takeAway(ctx, e, consumer)
	}
	return errors.Join(
		pgtx.Queue(ctx, s.failed.record, consumer, e.record, hashedID(e.key)),
		pgtx.Queue(ctx, s.sql.done, consumer, e.record),
	)
}

// sweep looks once in a while, beside what is recorded, for rows of events that have succeeded elsewhere. What fails here is
// tried again the next time.
func (s *PostgresStore) sweep(ctx context.Context) {
	last := s.swept.Load()
	if now := time.Now().UnixNano(); now-last < int64(sweepEvery) || !s.swept.CompareAndSwap(last, now) {
		return
	}
	var next *time.Time
	if err := s.pool.QueryRow(ctx, s.failed.sweep, time.UnixMicro(s.sweptTo.Load())).Scan(&next, nil); err != nil {
		return
	}
	s.sweptTo.Store(0)
	if next != nil {
		s.sweptTo.Store(next.UnixMicro())
	}
}

// lockTimeout makes ErrContended of a lock_timeout.
func lockTimeout(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "55P03" {
		return fmt.Errorf("%w: %w", ErrContended, err)
	}
	return err
}

// write queues the statements that keep an event.
func (s *PostgresStore) write(ctx context.Context, e event, consumer int16, v verdict, failure string) error {
	var due *int64
	if v.state == stateRetrying {
		ms := v.delay.Milliseconds()
		due = &ms
	}
	if v.state == stateIgnored {
		return s.ignore(ctx, e, consumer)
	}
	headers, payload := e.headers, e.payload
	if v.state == stateNacked {
		headers, payload = nil, nil // the broker has them
	}
	err := pgtx.Queue(ctx, s.failed.keep, consumer, e.record, inbox.Printable(e.key.EventID, maxError), e.key.Order, v.state, v.attempts, v.reason,
		inbox.Printable(failure, maxError), failure != "", here, inbox.Printable(e.handler, maxError), inbox.Printable(e.topic, maxError), headers, payload, due)
	if err != nil {
		return err
	}
	switch {
	case v.state == stateNacked:
		return nil
	case e.row != 0: // it has its record, and holds its key up
		return nil
	case e.key.Order != "":
		if err := pgtx.Queue(ctx, s.failed.block, consumer, e.key.Order); err != nil {
			return err
		}
	}
	return pgtx.Queue(ctx, s.failed.record, consumer, e.record, hashedID(e.key))
}
