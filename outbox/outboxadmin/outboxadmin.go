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

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
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
	return operator.Run(ctx, db, store.Migrations.In, schema, action, f, opts...)
}
