package effect

import (
	"context"
	"time"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// Audit is one decision that a person made with Resolve.
type Audit struct {
	ID     int64     `json:"id"`
	At     time.Time `json:"at"`
	Actor  string    `json:"actor"`
	Key    string    `json:"key"`    // the effect's key
	State  string    `json:"state"`  // the decided state: "done", "not_done"
	Before string    `json:"before"` // the state before
	Reason string    `json:"reason"` // of the doubt
	Note   string    `json:"note"`
}

// AuditPage selects a page of the audit, which is read from the last decision backwards.
type AuditPage = operator.AuditPage

// ListAudit returns the decisions in the schema ("" means "millrace"), the last first. It uses its own transaction.
func ListAudit(ctx context.Context, db pgtx.DB, schema string, p AuditPage) ([]Audit, error) {
	return operator.ReadAudit[Audit](ctx, db, migrations.In, schema, func(schema string) string { return pgschema.Query(files, "audited", schema) }, p)
}
