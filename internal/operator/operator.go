// Package operator has the common part of the operators' functions of the outbox and of the claim: who acts, and one action in one
// transaction.
package operator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// By says who acts, for the audit log.
type By struct {
	Actor string // who. It must not be ""
	Note  string // why
}

// Validate returns an error if the actor is missing.
func (by By) Validate() error {
	if by.Actor == "" {
		return errors.New(`By.Actor is "": want the name of who does it`)
	}
	return nil
}

// Migrations returns a component's migrator for a schema.
type Migrations func(db pgtx.DB, schema string) (*pgschema.Migrator, error)

// Run runs one action in a transaction, after it has checked that the schema fits the program ("" means "millrace").
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
			// PostgreSQL estimates a high cost for statements that read thousands of rows of tables with millions, and compiling them
			// takes longer than running them.
			if _, err := tx.Exec(ctx, `select set_config('jit', 'off', true)`); err != nil {
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

// AuditPage selects a part of an audit log, which is read from the last action backwards.
type AuditPage struct {
	Before int64 // only actions with an ID below this one. Default: all
	Limit  int   // Default: 100
}

// ReadAudit returns one part of an audit log. The statement's first parameters are those of the page.
func ReadAudit[T any](ctx context.Context, db pgtx.DB, m Migrations, schema string, statement func(schema string) string, p AuditPage, args ...any) (found []T, err error) {
	if p.Before == 0 {
		p.Before = math.MaxInt64
	}
	if p.Limit == 0 {
		p.Limit = 100
	}
	err = Run(ctx, db, m, schema, "list audit", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, statement(schema), append([]any{p.Before, p.Limit}, args...)...)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	})
	return found, err
}

// Optional returns nil for "".
func Optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// OptionalTime returns nil for the zero time.
func OptionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
