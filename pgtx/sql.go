package pgtx

import (
	"context"
	"database/sql"

	"github.com/millrace-go/millrace/internal/boundary"
)

// WithSQL returns a context that carries a database/sql transaction which the caller began and will end. As with With,
// Millrace cannot see its commit. SQLFrom returns the transaction, From does not. Run returns an error for this context.
func WithSQL(ctx context.Context, tx *sql.Tx) context.Context {
	if tx == nil {
		return ctx
	}
	return context.WithValue(ctx, boundary.Postgres{}, &unit{sql: tx})
}

// SQLFrom returns the database/sql transaction that WithSQL put into the context. It returns false if there is none, or if
// With has put a pgx transaction there since.
func SQLFrom(ctx context.Context) (*sql.Tx, bool) {
	u := unitOf(ctx)
	if u == nil || u.sql == nil {
		return nil, false
	}
	return u.sql, true
}
