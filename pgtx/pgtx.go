// Package pgtx is the unit of work: a PostgreSQL transaction that travels in the context.
//
// [Run] passes a transaction to a function, both as a pgx.Tx and in the context, and commits it when the function returns
// nil. Code that is called with this context (repositories, the outbox's publisher) finds the transaction with [From] and
// takes part in it. [With] and [WithSQL] put a transaction into the context that Millrace did not begin. [Detached] removes
// the transaction from the context, for work that must not be part of it.
//
// Run saves round trips: it sends BEGIN and savepoints with the first statement, and statements of [Queue] with COMMIT.
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
// not have been committed. Do not simply repeat the work: read the database first, or repeat it idempotently. A consumer
// can rely on the redelivery, which its claim deduplicates; an HTTP client repeats the request with the same idempotency key.
var ErrOutcomeUnknown = errors.New("outcome of the transaction is unknown")

// ErrManaged is returned by Commit and Rollback of a transaction that Run manages: return nil to commit it and an error
// to roll it back. Begin (a savepoint) works as usual. SQL that contains COMMIT or ROLLBACK gets this error too. If COMMIT
// or ROLLBACK was sent on the transaction's Conn, Run returns this error, even if a BEGIN followed.
var ErrManaged = errors.New("the transaction is managed by pgtx.Run: return nil to commit, an error to roll back")

// ErrNoTransaction is returned by Queue for a context that carries no transaction.
var ErrNoTransaction = errors.New("no transaction in the context: call this inside " +
	"pgtx.Run(ctx, db, func(ctx context.Context, tx pgx.Tx) error { … }) with the function's own ctx, " +
	"or put a transaction there with pgtx.With or pgtx.WithSQL")

// DB begins transactions: a *pgxpool.Pool or a *pgx.Conn. With any other implementation BEGIN and COMMIT each cost a round
// trip. A wrapper may have a method Unwrap() DB that returns the wrapped DB. Then a Run on the wrapper joins a transaction
// of the wrapped DB, and the other way round, without a call of BeginTx.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Run calls fn with a transaction on db. It commits the transaction when fn returns nil, and rolls it back when fn returns
// an error or panics. The context given to fn carries the transaction.
//
// Run takes a connection before it calls fn, but sends BEGIN together with the first statement. If fn sends, queues and
// collects nothing, Run sends nothing at all. A tracer therefore sees the first statement as part of a batch, or with BEGIN
// before it. The methods Conn and LargeObjects of the transaction send BEGIN at once.
//
// Inside another Run, in a handler under a claim and below With, Run joins the transaction of the context with a
// savepoint: an error of fn undoes only fn's part. So a handler may call functions that use Run, and their work stays in
// the handler's transaction.
//
// Run joins only on the same handle: on the same pool or connection, on the connection of the transaction itself, or on a
// wrapper with a method Unwrap() DB that returns one of these. Two pools of one database are two handles. Below With the
// handle is not known: there a pool joins if its host, port, database, user and run-time parameters are the connection's.
// On another handle, and below WithSQL, where there is no pgx.Tx, Run returns an error and does not call fn. Use
// Detached for work that is not part of the transaction.
//
// The savepoint is sent with the first statement inside it, and its release with the next statement after it. So it costs no
// extra round trip, unless its first statement is new to the connection: PostgreSQL might refuse such a statement before it
// executes the savepoint. Pass options to the outermost Run only: a Run that joins returns an error for them.
//
// fn must not use its transaction from several goroutines at once, nor after fn has returned.
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

// finish makes AfterCommit return false from now on, because nobody would call the function.
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
		// This runs on a panic too, which then continues.
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

// AfterCommit registers f, which Run calls after it has committed the outermost transaction. Run calls the functions in the
// order of registration on its own goroutine, so f must not block. AfterCommit returns false, and never calls f, if the
// context carries no transaction of Run's. Functions that were registered in a savepoint are dropped if it is rolled back.
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

// managed is a savepoint that Run made in a transaction that the caller began. Only Run may end it.
type managed struct{ pgx.Tx }

func (managed) Commit(context.Context) error   { return ErrManaged }
func (managed) Rollback(context.Context) error { return ErrManaged }
