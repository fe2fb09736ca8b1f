package effect

import (
	"context"
	"time"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// Audit is what a person decided by Resolve.
type Audit struct {
	ID     int64     `json:"id"`
	At     time.Time `json:"at"`
	Actor  string    `json:"actor"`
	Key    string    `json:"key"`    // of the effect
	State  string    `json:"state"`  // that it was given: "done", "not_done"
	Before string    `json:"before"` // the state that it was in
	Reason string    `json:"reason"` // of the doubt
	Note   string    `json:"note"`
}

// AuditPage is a part of the audit, which is read from the last decision backwards.
type AuditPage = operator.AuditPage

// ListAudit returns what people decided in the schema ("" means "millrace"), the last first. It begins a transaction of its own.
func ListAudit(ctx context.Context, db pgtx.DB, schema string, p AuditPage) ([]Audit, error) {
	return operator.ReadAudit[Audit](ctx, db, migrations.In, schema, func(schema string) string { return pgschema.Query(files, "audited", schema) }, p)
}
