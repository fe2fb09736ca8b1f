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
	"encoding/json"
	"time"

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

// By says who acts: Actor, which must not be "", and Note, which says why. Each action leaves a row, which ListAudit returns.
type By = operator.By

// auditDetail is on what an operator acted, and why.
type auditDetail struct {
	Note     string     `json:"note,omitempty"`
	Topic    string     `json:"topic,omitempty"`
	Key      string     `json:"key,omitempty"`
	Group    string     `json:"group,omitempty"`
	To       string     `json:"to,omitempty"`
	EventIDs []string   `json:"event_ids,omitempty"`
	Replay   int64      `json:"replay,omitempty"`
	Until    *time.Time `json:"until,omitempty"`
}

// audit records what an operator does, in the transaction that does it.
func audit(ctx context.Context, tx pgx.Tx, schema string, by By, action string, events int64, detail auditDetail) (id int64, err error) {
	detail.Note = by.Note
	text, err := json.Marshal(detail)
	if err == nil {
		err = tx.QueryRow(ctx, query("audit", schema), by.Actor, action, events, string(text)).Scan(&id)
	}
	return id, err
}

// Audit is what an operator did.
type Audit struct {
	ID         int64           `json:"id"` // of a replay, for ReplayConfig.Resume
	At         time.Time       `json:"at"`
	Actor      string          `json:"actor"`
	Action     string          `json:"action"` // "retry", "discard", "replay", "stop replay", "resume replay"; of a topic "pause", "resume", "redirect", "end redirect", "discard"
	Events     int64           `json:"events"` // how many it concerned; of a replay, how many were replayed so far
	Unfinished bool            `json:"unfinished,omitempty"`
	Detail     json.RawMessage `json:"detail"` // the note, and what was selected
}

// AuditPage is a part of the audit, which is read from the last action backwards.
type AuditPage = operator.AuditPage

// ListAudit returns what operators did, the last first.
func ListAudit(ctx context.Context, db pgtx.DB, schema string, p AuditPage) ([]Audit, error) {
	return operator.ReadAudit[Audit](ctx, db, store.Migrations.In, schema, func(schema string) string { return query("audited", schema) }, p)
}
