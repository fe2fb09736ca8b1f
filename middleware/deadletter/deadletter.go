// Package deadletter is for operators of consumers that use package claim. It lists and shows failed events, groups them by their
// errors, replays, edits, redirects and discards them, finds the state of an event for each consumer, and lists the actions of
// operators. The command "millrace dead" uses it.
//
// All functions may be called at any time, by several processes at once, while consumers are running. They begin a transaction of
// their own, so do not call them inside another one. The schema "" means "millrace".
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

// administer runs one operators' action in a transaction, after checking that this program supports the schema.
func administer(ctx context.Context, db pgtx.DB, schema, action string, f func(context.Context, pgx.Tx, string) error, opts ...pgtx.Option) error {
	return operator.Run(ctx, db, claim.Migrations, schema, action, f, opts...)
}
