package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

// By names who acts: Actor, which must not be empty, and Note, which is the reason. Each action writes a row for each event into the
// audit, which ListAudit returns.
type By = operator.By

// Audit is one action of an operator on one event.
type Audit struct {
	ID       int64           `json:"id"`
	At       time.Time       `json:"at"`
	Actor    string          `json:"actor"`
	Action   string          `json:"action"` // "edit", "replay", "discard", "reveal", "expire", "purge", "purge audit"; of a replay with a pace "stop replay", "resume replay"
	Consumer string          `json:"consumer"`
	EventID  string          `json:"event_id"`
	Detail   json.RawMessage `json:"detail"` // the note, and the event's former state, reason and error
}

// AuditListing selects what ListAudit returns.
type AuditListing struct {
	EventID  string // Default: all
	Consumer string // Default: all
	AuditPage
}

// AuditPage selects a page of the audit, from the latest action backwards.
type AuditPage = operator.AuditPage

// AuditReveal notes in the audit that an operator is about to see the event's payload. Nothing of the payload is noted. Show notes nothing.
func AuditReveal(ctx context.Context, db pgtx.DB, schema, eventID, consumer string, by By) error {
	if err := by.Validate(); err != nil {
		return fmt.Errorf("note a reveal: %w", err)
	}
	return administer(ctx, db, schema, "note a reveal", func(ctx context.Context, tx pgx.Tx, schema string) error {
		_, err := tx.Exec(ctx, query("revealed", schema), by.Actor, consumer, eventID, by.Note)
		return err
	})
}

// ListAudit returns the actions of operators, the latest first.
func ListAudit(ctx context.Context, db pgtx.DB, schema string, l AuditListing) ([]Audit, error) {
	return operator.ReadAudit[Audit](ctx, db, claim.Migrations, schema, func(schema string) string { return query("audited", schema) }, l.AuditPage,
		operator.Optional(inbox.Canonical(l.EventID)), operator.Optional(l.Consumer))
}
