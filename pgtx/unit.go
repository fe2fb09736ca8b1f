package pgtx

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/boundary"
	"github.com/millrace-go/millrace/internal/pgunit"
)

var _ pgunit.Unit = (*unit)(nil)

// unit is what the context carries.
type unit struct {
	tx   pgx.Tx       // nil below WithSQL
	sql  *sql.Tx      // below WithSQL
	work *transaction // nil if Millrace did not begin the transaction: then its commit cannot be seen
}

// closed reports whether the savepoint of this context has ended.
func (u *unit) closed() bool {
	x, ok := u.tx.(*tx)
	return ok && x.closed
}

func unitOf(ctx context.Context) *unit {
	u, _ := ctx.Value(boundary.Postgres{}).(*unit)
	return u
}

// refuse returns an error if a Run on db cannot join the transaction. handle is db without its wrappers.
func (u *unit) refuse(db, handle DB) error {
	const remedy = "its writes would stay if the transaction is rolled back, and happen again if it is repeated. Use %s, " +
		"or pass pgtx.Detached(ctx) for work that is not part of the transaction"
	const same = "the same handle for both (a wrapper needs a method Unwrap() pgtx.DB)"
	switch {
	case u.sql != nil:
		return fmt.Errorf("the context carries a *sql.Tx of pgtx.WithSQL, which Run on %s cannot join: "+remedy, describe(db), "the *sql.Tx (pgtx.SQLFrom)")
	case u.work != nil && !u.work.on(handle):
		return fmt.Errorf("the context carries a transaction of %s, but Run was called on another handle, %s: "+remedy, describe(u.work.db), describe(db), same)
	case u.work == nil && !reaches(u.tx.Conn(), handle):
		return fmt.Errorf("the context carries a transaction of pgtx.With (%s), but Run was called on %s, whose host, port, database, user or "+
			"run-time parameters differ or are not known: "+remedy, address(u.tx.Conn()), describe(db), same)
	}
	return nil
}

// From returns the transaction that the context carries. It returns false if there is none, or if it is a *sql.Tx.
func From(ctx context.Context) (pgx.Tx, bool) {
	u := unitOf(ctx)
	if u == nil || u.tx == nil {
		return nil, false
	}
	return u.tx, true
}

// With returns a context that carries a transaction which the caller began and will end. Millrace cannot see its
// commit, so AfterCommit registers nothing: wake a relay with Relay.Nudge, or let its poll find the events.
// If t is a transaction of Run's, or a savepoint in one, it behaves as in the context that Run made. Otherwise a Run joins t
// only on a handle with the same configuration as t's connection.
func With(ctx context.Context, t pgx.Tx) context.Context {
	if t == nil {
		return ctx
	}
	u := &unit{tx: t}
	if x, ok := t.(*tx); ok {
		u.work = x.t
	}
	return context.WithValue(ctx, boundary.Postgres{}, u)
}

// Detached returns a context that carries no transaction. Use it for work that must not be part of the transaction of ctx:
// work on another database, or in a separate transaction, such as an audit trail that survives a rollback.
//
// The effects of that work stay when the outer transaction is rolled back. They happen again when the outer transaction is
// repeated, for example when a message is redelivered to its handler. So make the work idempotent.
//
// The work needs a second connection while the outer transaction holds the first one. If both use the same pool, transactions
// that together hold all its connections wait for each other. The work must not need a lock that the outer transaction holds:
// PostgreSQL does not detect this deadlock, because the outer transaction waits in the program.
func Detached(ctx context.Context) context.Context {
	if ctx.Value(boundary.Postgres{}) == nil {
		return ctx
	}
	return context.WithValue(ctx, boundary.Postgres{}, nil)
}
