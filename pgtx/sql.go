package pgtx

import (
	"context"
	"database/sql"

	"github.com/millrace-go/millrace/internal/boundary"
)

// WithSQL returns a context that carries a database/sql transaction which the caller began and will end. As below With,
// Millrace cannot see its commit. From does not find it, SQLFrom does, and Run refuses to work below it.
func WithSQL(ctx context.Context, tx *sql.Tx) context.Context {
	if tx == nil {
		return ctx
	}
	return context.WithValue(ctx, boundary.Postgres{}, &unit{sql: tx})
}

// SQLFrom returns the database/sql transaction that WithSQL put into the context, unless a pgx transaction was put there
// after it.
func SQLFrom(ctx context.Context) (*sql.Tx, bool) {
	u := unitOf(ctx)
	if u == nil || u.sql == nil {
		return nil, false
	}
	return u.sql, true
}
