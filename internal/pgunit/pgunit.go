// Package pgunit has the functions of package pgtx that only Millrace's own packages need: they collect items, which become
// statements at COMMIT, and report the state of the transaction.
package pgunit

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/boundary"
)

// Collector turns the items that a transaction has collected into statements. Items of equal collectors (compared with ==,
// so a collector must be comparable) are passed to one call of Flush.
type Collector interface {
	// Flush adds the statements for the items to b. The items are in the order of their collection. Flush is called just before
	// COMMIT, or earlier if the items must be sent earlier. It must not send anything on the transaction. ctx carries the
	// transaction, for AfterCommit. If the batch fails, or a savepoint is rolled back after a flush, Flush is called again
	// with the items that were collected before the savepoint.
	Flush(ctx context.Context, items []any, b *pgx.Batch) error

	// Explain returns the error for the caller if one of those statements fails with err. It may add an explanation.
	Explain(err error) error

	// Locks reports whether the statements take locks that the statements of other collectors need. Then they are sent first.
	Locks() bool
}

// Opening is a statement that is sent right after BEGIN, in the round trip of the transaction's first statement or of COMMIT.
// The statements after it in that round trip are executed only if the server accepts it.
type Opening struct {
	SQL  string
	Args []any

	// Implicit allows a transaction that is sent in one round trip to omit BEGIN and COMMIT: PostgreSQL makes one transaction
	// of the round trip. Its isolation level is then the session's default, so the statement must fail if that level is wrong.
	Implicit bool

	// Explain returns the error of the transaction if the server refuses the statement with the given error.
	Explain func(error) error

	// Sent reports whether the statement was sent. If the connection is lost then, its outcome may be unknown.
	Sent bool

	// Err is Explain's error if the server has refused the statement. Then the transaction can only be rolled back.
	Err error
}

// Unit is the value that package pgtx stores in a context. The functions below document its methods.
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

// Open sets the opening of Run's transaction in the context. It returns an error if the transaction has begun.
func Open(ctx context.Context, o *Opening) error {
	if u, ok := unitOf(ctx); ok {
		return u.Open(o)
	}
	return errors.New("open the transaction: there is none in the context")
}

// Begin sends the opening now, unless it was sent. It does nothing if the transaction has no opening.
func Begin(ctx context.Context) error {
	if u, ok := unitOf(ctx); ok {
		return u.Begin(ctx)
	}
	return nil
}

// Collect keeps the item for the collector until COMMIT. All collected items are sent in the round trip of COMMIT, after the
// queued statements. If a nested Run rolls back, the items that were collected in it are dropped.
//
// Collect returns false if the caller must write the item at once: without a transaction of Run's (below With and WithSQL),
// and after SAVEPOINT was sent as a statement or the transaction's Conn was called, because Run does not see savepoints that
// are made in this way. In the last two cases earlier items are sent first. Collect returns an error if sending them fails;
// then the transaction has failed.
func Collect(ctx context.Context, c Collector, item any) (collected bool, err error) {
	if u, ok := unitOf(ctx); ok {
		return u.Collect(ctx, c, item)
	}
	return false, nil
}

// Lost reports whether the connection of the transaction in the context is closed. So it tells an outage of the database from
// a mistake in the code that ran in the transaction, even if that code has replaced the error.
func Lost(ctx context.Context) bool {
	u, ok := unitOf(ctx)
	return ok && u.Lost()
}

// Sound reports whether no statement has failed in the transaction or savepoint of the context. If Sound is true, a server's
// error came from another connection. The state of a *sql.Tx is not known: for it Sound returns false.
func Sound(ctx context.Context) bool {
	u, ok := unitOf(ctx)
	return ok && u.Sound()
}

// Watch makes the transaction of the context record statements that leave something behind: see Leaves.
func Watch(ctx context.Context) {
	if u, ok := unitOf(ctx); ok {
		u.Watch()
	}
}

// Leaves returns the first statement inside the savepoint of this context that leaves something behind for the rest of the
// transaction: settings, a role, temporary tables or cursors. It returns "" if there is none. It judges a statement by its
// text, so it does not see what called functions do. Watch must have been called before.
func Leaves(ctx context.Context) string {
	if u, ok := unitOf(ctx); ok {
		return u.Leaves()
	}
	return ""
}

// Inherited reports whether a statement that was queued or collected before the savepoint of this context was sent inside it
// (for example by Flush) and failed. The code that ran in the savepoint did not cause such a failure.
func Inherited(ctx context.Context) bool {
	u, ok := unitOf(ctx)
	return ok && u.Inherited()
}
