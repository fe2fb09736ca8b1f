// Package operator has what the operators' functions of the outbox and of the claim have in common: who acts, and one action in one
// transaction.
package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// By says who acts, for the audit.
type By struct {
	Actor string // who. It must not be ""
	Note  string // why
}

// Validate refuses an action of nobody.
func (by By) Validate() error {
	if by.Actor == "" {
		return errors.New(`By.Actor is "": want the name of who does it`)
	}
	return nil
}

// Migrations tells which tables a component needs in a schema.
type Migrations func(db pgtx.DB, schema string) (*pgschema.Migrator, error)

// Run runs one action in a transaction, after it has checked that the program knows the schema ("" means "millrace").
func Run(ctx context.Context, db pgtx.DB, m Migrations, schema, action string, f func(ctx context.Context, tx pgx.Tx, schema string) error, opts ...pgtx.Option) error {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	tables, err := m(db, schema)
	if err == nil {
		err = pgtx.Run(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
			if err := tables.CheckIn(ctx, tx); err != nil {
				return err
			}
			return f(ctx, tx, schema)
		}, opts...)
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42501" {
		err = fmt.Errorf("%w: this is for the owner of the tables, or for a role that \"millrace migrate grants\" made an operator", err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return nil
}

// Optional is nil for "".
func Optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// OptionalTime is nil for the zero time.
func OptionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
