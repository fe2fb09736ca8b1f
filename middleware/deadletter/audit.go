package deadletter

import (
	"context"
	"encoding/json"
	"time"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

// By says who acts: Actor, which must not be "", and Note, which says why. Each action leaves a row for each event, which ListAudit
// returns.
type By = operator.By

// Audit is what an operator did to an event.
type Audit struct {
	ID       int64           `json:"id"`
	At       time.Time       `json:"at"`
	Actor    string          `json:"actor"`
	Action   string          `json:"action"` // "edit", "replay", "discard", "expire", "purge", "purge audit"; of a replay that keeps a pace "stop replay", "resume replay"
	Consumer string          `json:"consumer"`
	EventID  string          `json:"event_id"`
	Detail   json.RawMessage `json:"detail"` // the note, and the event's state, reason and error before
}

// AuditListing selects what ListAudit returns.
type AuditListing struct {
	EventID  string // Default: all
	Consumer string // Default: all
	AuditPage
}

// AuditPage is a part of the audit, which is read from the last action backwards.
type AuditPage = operator.AuditPage

// ListAudit returns what operators did, the last first.
func ListAudit(ctx context.Context, db pgtx.DB, schema string, l AuditListing) ([]Audit, error) {
	return operator.ReadAudit[Audit](ctx, db, claim.Migrations, schema, func(schema string) string { return query("audited", schema) }, l.AuditPage,
		operator.Optional(inbox.Canonical(l.EventID)), operator.Optional(l.Consumer))
}
