// Package outboxadmin is for operators of an outbox: it shows what an outbox holds, retries and discards events that could
// not be published, replays archived events, pauses and redirects topics, finds an event, checks and changes the shards, and grants
// privileges. The command "millrace outbox" is made of it.
//
// All functions may be called at any time, by several processes at once, beside producers and relays. They begin a
// transaction: do not call them inside another one. The schema "" means "millrace".
package outboxadmin

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

//go:embed queries/*.sql
var files embed.FS

// query returns the statement of queries/name.sql for the schema.
func query(name, schema string) string { return pgschema.Query(files, name, schema) }

// administer runs one operator's action in a transaction, after checking that the program knows the schema.
func administer(ctx context.Context, db pgtx.DB, schema, action string, f func(context.Context, pgx.Tx, string) error, opts ...pgtx.Option) error {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	err = pgtx.Run(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		if err := store.Migrations.Check(ctx, tx, schema); err != nil {
			return err
		}
		return f(ctx, tx, schema)
	}, opts...)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42501" {
		err = fmt.Errorf("%w: this is for the owner of the tables, or for a role that \"millrace migrate grants\" made an operator", err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return nil
}
