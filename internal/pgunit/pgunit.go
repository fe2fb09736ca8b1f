// Package pgunit is what Millrace's own packages need of the unit of work in package pgtx, and its users do not: statements
// that are made of what a transaction has collected, and what became of the transaction.
package pgunit

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/boundary"
)

// Collector turns what a transaction has collected into statements. Items that were collected with equal collectors
// (==, so they must be comparable) come to one call of Flush.
type Collector interface {
	// Flush queues the statements for the items, which are in the order of their collection. It is called just before
	// COMMIT, or earlier when the items can wait no longer, and must not use the transaction by itself. ctx carries the
	// transaction, for AfterCommit. Of a batch that fails, or a savepoint that is rolled back after a flush, items that
	// were collected before the savepoint come again.
	Flush(ctx context.Context, items []any, b *pgx.Batch) error

	// Explain may say more about the error of one of those statements.
	Explain(err error) error

	// Locks reports whether the statements take locks that those of other collectors need; then they come first.
	Locks() bool
}

// Opening is a statement that travels behind BEGIN, with the first statement of the transaction or with COMMIT. What comes
// behind it in that round trip is executed only if the server accepts it.
type Opening struct {
	SQL  string
	Args []any

	// Implicit lets BEGIN and COMMIT be left out where the whole transaction is sent in one round trip, of which PostgreSQL makes
	// one transaction. Its isolation level is the session's default then: the statement must refuse what does not fit.
	Implicit bool

	// Explain makes the error of a transaction that the server has refused of the error that it gave.
	Explain func(error) error

	// Sent reports whether the statement was sent. A connection that is lost may leave it unknown what became of it.
	Sent bool

	// Err is the explained error if the server has refused the statement. The transaction can only be rolled back then.
	Err error
}

// Unit is what package pgtx keeps in a context.
type Unit interface {
	Open(o *Opening) error
	Begin(ctx context.Context) error
	Collect(ctx context.Context, c Collector, item any) (collected bool, err error)
	Lost() bool
	Sound() bool
	Inherited() bool
	Watch()
	Leaves() string
}

func unitOf(ctx context.Context) (Unit, bool) {
	u, ok := ctx.Value(boundary.Postgres{}).(Unit)
	return u, ok
}

// Open gives the transaction of Run's that the context carries its opening. It must not have begun.
func Open(ctx context.Context, o *Opening) error {
	if u, ok := unitOf(ctx); ok {
		return u.Open(o)
	}
	return errors.New("open the transaction: there is none in the context")
}

// Begin sends the opening now, unless it was sent. Without an opening there is nothing to do.
func Begin(ctx context.Context) error {
	if u, ok := unitOf(ctx); ok {
		return u.Begin(ctx)
	}
	return nil
}

// Collect keeps the item for the collector until COMMIT, in whose round trip everything that was collected is sent, after
// what was queued. An item that was collected in a nested Run that rolls back is forgotten.
//
// It reports false when the caller must write at once: without a transaction of Run's (below With and WithSQL), and from
// the moment on when savepoints may be made that Run does not see, by a SAVEPOINT sent as a statement or by the
// transaction's Conn. What was collected before then has been sent by then. An error means that this failed, and with it
// the transaction.
func Collect(ctx context.Context, c Collector, item any) (collected bool, err error) {
	if u, ok := unitOf(ctx); ok {
		return u.Collect(ctx, c, item)
	}
	return false, nil
}

// Lost reports whether the connection of the transaction that the context carries is gone. It tells an outage of the
// database from a mistake of what ran in the transaction, whatever was made of the error in between.
func Lost(ctx context.Context) bool {
	u, ok := unitOf(ctx)
	return ok && u.Lost()
}

// Sound reports whether no statement has failed in the transaction or savepoint that the context carries. An error that a
// server gave is another connection's then. A *sql.Tx cannot be asked: for it Sound reports false.
func Sound(ctx context.Context) bool {
	u, ok := unitOf(ctx)
	return ok && u.Sound()
}

// Watch has the transaction that the context carries note which of its statements leave something to those after them: see
// Leaves.
func Watch(ctx context.Context) {
	if u, ok := unitOf(ctx); ok {
		u.Watch()
	}
}

// Leaves returns the first statement inside the savepoint of this context that leaves something to what runs in the transaction
// after the savepoint: settings, a role, temporary tables, cursors. "" if there is none. It knows statements by their text, so
// it does not know what the functions do that they call. The transaction must be watched.
func Leaves(ctx context.Context) string {
	if u, ok := unitOf(ctx); ok {
		return u.Leaves()
	}
	return ""
}

// Inherited reports whether a statement has failed inside the savepoint of this context that was queued or collected before
// it, and was sent by a Flush or the like: that says nothing about what ran in the savepoint.
func Inherited(ctx context.Context) bool {
	u, ok := unitOf(ctx)
	return ok && u.Inherited()
}
