// Package deadletter is for operators of consumers that use the claim: it lists and shows events that failed, groups them by
// their errors, replays, edits and discards them, finds how an event stands with each consumer, and tells what operators did.
// The command "millrace dead" is made of it.
//
// All functions may be called at any time, by several processes at once, beside running consumers. They begin a transaction:
// do not call them inside another one. The schema "" means "millrace".
package deadletter

import (
	"context"
	"embed"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/pgtx"
)

//go:embed queries/*.sql
var files embed.FS

// query returns the statement of queries/name.sql for the schema.
func query(name, schema string) string { return pgschema.Query(files, name, schema) }

// administer runs one operator's action in a transaction, after checking that the program knows the schema.
func administer(ctx context.Context, db pgtx.DB, schema, action string, f func(context.Context, pgx.Tx, string) error, opts ...pgtx.Option) error {
	return operator.Run(ctx, db, claim.Migrations, schema, action, f, opts...)
}
