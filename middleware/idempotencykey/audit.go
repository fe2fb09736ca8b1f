package idempotencykey

import (
	"context"
	"time"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// Audit is one operator's action on a stored answer.
type Audit struct {
	ID      int64     `json:"id"`
	At      time.Time `json:"at"`
	Actor   string    `json:"actor"`
	Action  string    `json:"action"` // "forget"
	Service string    `json:"service"`
	Key     string    `json:"key"`
	Request string    `json:"request"` // method and path
	Status  int       `json:"status"`  // of the answer
	Note    string    `json:"note"`
}

// AuditPage selects a page of the audit, which is read from the last action backwards.
type AuditPage = operator.AuditPage

// ListAudit returns the operators' actions in the schema ("" means "millrace"), the last first.
func ListAudit(ctx context.Context, db pgtx.DB, schema string, p AuditPage) ([]Audit, error) {
	return operator.ReadAudit[Audit](ctx, db, migrations.In, schema, func(schema string) string { return pgschema.Query(files, "audited", schema) }, p)
}
