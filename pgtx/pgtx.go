// Package pgtx is the unit of work: a PostgreSQL transaction that travels in the context.
//
// [Run] begins a transaction, hands it to a function both as a pgx.Tx and in the context, and commits it when the
// function returns nil. Whatever is called with that context (repositories, the outbox's publisher) finds the
// transaction with [From] and takes part in it. A transaction that Millrace did not begin is put there with [With].
package pgtx

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrOutcomeUnknown is wrapped by Run's error when the connection was lost during COMMIT: the transaction may or may
// not have been committed. Do not simply repeat the work: look first, or let something idempotent find out. For a
// consumer that is the redelivery, which its claim absorbs; for an HTTP client the repeated request with the same key.
var ErrOutcomeUnknown = errors.New("outcome of the transaction is unknown")

// ErrManaged is returned by Commit and Rollback of a transaction that Run manages: return nil to commit it and an error
// to roll it back. Begin (a savepoint) works as usual.
var ErrManaged = errors.New("the transaction is managed by pgtx.Run: return nil to commit, an error to roll back")

// rollbackTimeout bounds the ROLLBACK, which also runs when the caller's context has ended, so that the connection
// goes back to the pool instead of being torn down. The server rolls back in any case.
const rollbackTimeout = 5 * time.Second

// DB begins transactions: a *pgxpool.Pool or a *pgx.Conn.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Option changes how Run works.
type Option func(*pgx.TxOptions)

// Isolation sets the transaction's isolation level. Without it the role's default holds.
func Isolation(level pgx.TxIsoLevel) Option {
	return func(o *pgx.TxOptions) { o.IsoLevel = level }
}

type unitKey struct{}

// unit is what the context carries.
type unit struct {
	tx    pgx.Tx
	root  *root // nil when Millrace did not begin the transaction: then there is no commit to hook
	outer *unit // of another database, which an inner Run may come back to
}

type root struct {
	db    DB
	after []func()
}

// Run begins a transaction on db, calls fn with it and commits it when fn returns nil; when fn returns an error or
// panics it is rolled back. The context given to fn carries the transaction.
//
// Inside another Run on the same db (or below With) the work joins that transaction, as a savepoint: an error of fn
// undoes only fn's part. So a handler may call functions that use Run without escaping from the handler's transaction.
// Options are for the outermost Run; a joining one refuses them.
//
// fn must not use its transaction from several goroutines at once, nor after it has returned.
func Run(ctx context.Context, db DB, fn func(ctx context.Context, tx pgx.Tx) error, opts ...Option) error {
	outer, _ := ctx.Value(unitKey{}).(*unit)
	for u := outer; u != nil; u = u.outer {
		if u.root != nil && u.root.db != db {
			continue
		}
		if len(opts) > 0 {
			return errors.New("begin transaction: options on a Run that joins an outer transaction: pass them to the outermost Run")
		}
		return runNested(ctx, u, fn)
	}
	var o pgx.TxOptions
	for _, opt := range opts {
		opt(&o)
	}
	tx, err := db.BeginTx(ctx, o)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	r := &root{db: db}
	if err := run(ctx, tx, &unit{tx: managed{tx}, root: r, outer: outer}, fn); err != nil {
		return err
	}
	for i := 0; i < len(r.after); i++ { // f may register another
		r.after[i]()
	}
	return nil
}

func runNested(ctx context.Context, outer *unit, fn func(context.Context, pgx.Tx) error) error {
	tx, err := outer.tx.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin savepoint: %w", err)
	}
	return run(ctx, tx, &unit{tx: managed{tx}, root: outer.root, outer: outer.outer}, fn)
}

func run(ctx context.Context, tx pgx.Tx, u *unit, fn func(context.Context, pgx.Tx) error) (err error) {
	committing := false
	defer func() {
		if committing && err == nil {
			return
		}
		// Also on a panic, which goes on after this.
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		if rerr := tx.Rollback(rctx); rerr != nil && !errors.Is(rerr, pgx.ErrTxClosed) && err != nil {
			err = errors.Join(err, fmt.Errorf("roll back: %w", rerr))
		}
	}()
	if err := fn(context.WithValue(ctx, unitKey{}, u), u.tx); err != nil {
		return err
	}
	if err := commitable(tx); err != nil {
		return err
	}
	committing = true
	return commitError(tx.Commit(ctx))
}

// commitable finds what COMMIT would not tell, or too late: of a failed transaction it makes a ROLLBACK, and outside of
// a transaction it succeeds.
func commitable(tx pgx.Tx) error {
	switch tx.Conn().PgConn().TxStatus() {
	case 'E':
		return fmt.Errorf("commit: a statement of the transaction had failed: %w", pgx.ErrTxCommitRollback)
	case 'I':
		return fmt.Errorf("commit: a COMMIT or ROLLBACK sent as a statement had ended the transaction: %w", ErrManaged)
	}
	return nil
}

// commitError tells a refused commit from one whose answer never came.
func commitError(err error) error {
	if err == nil {
		return nil
	}
	var pgErr *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrTxCommitRollback): // a statement had failed and its error was swallowed
		return fmt.Errorf("commit: a statement of the transaction had failed: %w", err)
	case pgconn.SafeToRetry(err): // COMMIT was never sent
		return fmt.Errorf("commit: %w", err)
	case errors.As(err, &pgErr) && pgErr.SeverityUnlocalized == "ERROR":
		return fmt.Errorf("commit: %w", err)
	}
	return fmt.Errorf("commit: %w: %w", ErrOutcomeUnknown, err)
}

// From returns the transaction that the context carries.
func From(ctx context.Context) (pgx.Tx, bool) {
	u, ok := ctx.Value(unitKey{}).(*unit)
	if !ok {
		return nil, false
	}
	return u.tx, true
}

// With returns a context that carries a transaction which the caller began and will end. Millrace cannot see its
// commit, so nothing that AfterCommit would do happens: wake a relay with Relay.Nudge, or let its poll find the events.
func With(ctx context.Context, tx pgx.Tx) context.Context {
	if tx == nil {
		return ctx
	}
	return context.WithValue(ctx, unitKey{}, &unit{tx: tx})
}

// AfterCommit calls f once the outermost transaction that Run began has been committed, in the order of registration,
// on Run's goroutine: f must not block. It reports false, and forgets f, when the context carries no such transaction.
// f is also called when the savepoint in which it was registered was rolled back but the whole was committed.
func AfterCommit(ctx context.Context, f func()) bool {
	u, ok := ctx.Value(unitKey{}).(*unit)
	if !ok || u.root == nil {
		return false
	}
	u.root.after = append(u.root.after, f)
	return true
}

// managed is a transaction whose end belongs to Run.
type managed struct{ pgx.Tx }

func (managed) Commit(context.Context) error   { return ErrManaged }
func (managed) Rollback(context.Context) error { return ErrManaged }
