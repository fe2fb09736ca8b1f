// Package pgtx is the unit of work: a PostgreSQL transaction that travels in the context.
//
// [Run] hands a transaction to a function, both as a pgx.Tx and in the context, and commits it when the function returns
// nil. Whatever is called with that context (repositories, the outbox's publisher) finds the transaction with [From] and
// takes part in it. A transaction that Millrace did not begin is put there with [With] or [WithSQL]. Work that is to take
// no part in it says so with [Detached].
//
// Run saves round trips: BEGIN and savepoints travel with the first statement, and what was given to [Queue] with COMMIT.
package pgtx

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/boundary"
)

// ErrOutcomeUnknown is wrapped by Run's error when the connection was lost during COMMIT: the transaction may or may
// not have been committed. Do not simply repeat the work: look first, or let something idempotent find out. For a
// consumer that is the redelivery, which its claim absorbs; for an HTTP client the repeated request with the same key.
var ErrOutcomeUnknown = errors.New("outcome of the transaction is unknown")

// ErrManaged is returned by Commit and Rollback of a transaction that Run manages: return nil to commit it and an error
// to roll it back. Begin (a savepoint) works as usual. It is also the answer to a text with COMMIT or ROLLBACK among its
// statements, and Run's error where one was sent on the transaction's Conn, even if a BEGIN followed it.
var ErrManaged = errors.New("the transaction is managed by pgtx.Run: return nil to commit, an error to roll back")

// ErrNoTransaction is returned by Queue for a context that carries no transaction.
var ErrNoTransaction = errors.New("no transaction in the context: call this inside " +
	"pgtx.Run(ctx, db, func(ctx context.Context, tx pgx.Tx) error { … }) with the function's own ctx, " +
	"or put a transaction there with pgtx.With or pgtx.WithSQL")

// DB begins transactions: a *pgxpool.Pool or a *pgx.Conn. With any other implementation BEGIN is a round trip of its
// own, and so is COMMIT. A wrapper may have a method Unwrap() DB that returns what it wraps: then Run on either joins a
// transaction of the other, and does not call BeginTx.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Run calls fn with a transaction on db, which it commits when fn returns nil; when fn returns an error or panics the
// transaction is rolled back. The context given to fn carries the transaction.
//
// A connection is held from the beginning, but BEGIN is sent together with the first statement; when fn sends none, and
// queues and collects nothing, nothing is sent at all. A tracer therefore sees the first statement as part of a batch,
// or with BEGIN before it. The transaction's Conn and LargeObjects begin it at once.
//
// Inside another Run, in a handler under a claim and below With, the work joins the transaction of the context, as a
// savepoint: an error of fn undoes only fn's part. So a handler may call functions that use Run without escaping from the
// handler's transaction.
//
// Only a Run on the same handle joins: on the same pool or connection, on the connection of the transaction itself, or on a
// wrapper with a method Unwrap() DB that returns one of these. Two pools of one database are two handles. Below With the
// handle is not known: there a pool joins if its host, port, database, user and run-time parameters are the connection's.
// On another handle, and below WithSQL, which has no pgx.Tx to hand out, Run returns an error and does not call fn. Use
// Detached for work that is not part of the transaction.
//
// The savepoint travels with the first statement inside it, its release with the next one after it: it costs no round trip
// of its own, but where the connection sends a statement for the first time, for PostgreSQL may refuse that too early.
// Options are for the outermost Run; a joining one refuses them.
//
// fn must not use its transaction from several goroutines at once, nor after it has returned.
func Run(ctx context.Context, db DB, fn func(ctx context.Context, tx pgx.Tx) error, opts ...Option) error {
	handle := unwrap(db)
	if handle == nil || !reflect.ValueOf(handle).Comparable() {
		return fmt.Errorf("begin transaction: the DB is a %T: want a *pgxpool.Pool, a *pgx.Conn, or a pointer to what wraps one", handle)
	}
	if u := unitOf(ctx); u != nil {
		if err := u.refuse(db, handle); err != nil {
			return fmt.Errorf("begin transaction: %w", err)
		}
		if len(opts) > 0 {
			return errors.New("begin transaction: options on a Run that joins an outer transaction: pass them to the outermost Run")
		}
		return runNested(ctx, u, fn)
	}
	var s settings
	for _, opt := range opts {
		opt(&s)
	}
	if s.retries < 0 {
		return fmt.Errorf("begin transaction: pgtx.Retry(%d): want 0 or more", s.retries)
	}
	for attempt := 0; ; attempt++ {
		err := runOnce(ctx, db, s.isolation, fn)
		if err == nil || attempt >= s.retries || !isConflict(err) {
			return err
		}
		if werr := backOff(ctx, attempt); werr != nil {
			return errors.Join(err, werr)
		}
	}
}

func runOnce(ctx context.Context, db DB, isolation pgx.TxIsoLevel, fn func(context.Context, pgx.Tx) error) error {
	t, err := open(ctx, db, isolation)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer t.finish()
	if err := runOutermost(ctx, t, fn); err != nil {
		return err
	}
	for i := 0; i < len(t.after); i++ { // f may register another
		t.after[i]()
	}
	return nil
}

// finish makes AfterCommit refuse what nobody would call any more.
func (t *transaction) finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done = true
}

func runOutermost(ctx context.Context, t *transaction, fn func(context.Context, pgx.Tx) error) error {
	defer t.release()
	x := &tx{t: t, managed: true}
	return run(ctx, &unit{tx: x, work: t}, fn, t.commit, t.rollback)
}

func runNested(ctx context.Context, outer *unit, fn func(context.Context, pgx.Tx) error) error {
	sp, err := outer.tx.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin savepoint: %w", err)
	}
	u := &unit{work: outer.work}
	if x, ok := sp.(*tx); ok {
		x.managed = true
		u.tx, u.work = x, x.t
		return run(ctx, u, fn, x.keep, x.undo)
	}
	u.tx = managed{sp}
	return run(ctx, u, fn, func(ctx context.Context) error {
		if err := commitable(sp.Conn()); err != nil {
			return err
		}
		return commitError(sp.Commit(ctx))
	}, sp.Rollback)
}

// run calls fn and ends its part of the transaction.
func run(ctx context.Context, u *unit, fn func(context.Context, pgx.Tx) error, commit, rollback func(context.Context) error) (err error) {
	committed := false
	defer func() {
		if committed {
			return
		}
		// Also on a panic, which goes on after this.
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		if rerr := rollback(rctx); rerr != nil && !errors.Is(rerr, pgx.ErrTxClosed) && err != nil {
			err = errors.Join(err, fmt.Errorf("roll back: %w", rerr))
		}
	}()
	if err := fn(context.WithValue(ctx, boundary.Postgres{}, u), u.tx); err != nil {
		return err
	}
	err = commit(ctx)
	committed = err == nil
	return err
}

// AfterCommit calls f once the outermost transaction that Run began has been committed, in the order of registration,
// on Run's goroutine: f must not block. It reports false, and forgets f, when the context carries no such transaction.
// A savepoint that is rolled back takes along what was registered in it.
func AfterCommit(ctx context.Context, f func()) bool {
	u := unitOf(ctx)
	if u == nil || u.work == nil {
		return false
	}
	u.work.mu.Lock()
	defer u.work.mu.Unlock()
	if u.work.done {
		return false
	}
	u.work.after = append(u.work.after, f)
	return true
}

// managed is a savepoint in a transaction of another's whose end belongs to Run.
type managed struct{ pgx.Tx }

func (managed) Commit(context.Context) error   { return ErrManaged }
func (managed) Rollback(context.Context) error { return ErrManaged }
