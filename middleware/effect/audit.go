package effect

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// Audit is one decision that a person made with Resolve, or a look at a response.
type Audit struct {
	ID     int64     `json:"id"`
	At     time.Time `json:"at"`
	Actor  string    `json:"actor"`
	Action string    `json:"action"` // "resolve", "reveal"
	Key    string    `json:"key"`    // the effect's key
	State  string    `json:"state"`  // the decided state: "done", "not_done"; of a reveal the state that it was in
	Before string    `json:"before"` // the state before
	Reason string    `json:"reason"` // of the doubt
	Note   string    `json:"note"`
}

// AuditPage selects a page of the audit, which is read from the last decision backwards.
type AuditPage = operator.AuditPage

// AuditReveal notes in the audit that a person, by, is about to see the response of an effect. Nothing of the response is noted. List notes
// nothing.
func AuditReveal(ctx context.Context, db pgtx.DB, schema string, e Entry, by string) error {
	if by == "" {
		return errors.New(`note a reveal: by is "": want who sees it`)
	}
	return operator.Run(ctx, db, migrations.In, schema, "note a reveal", func(ctx context.Context, tx pgx.Tx, schema string) error {
		_, err := tx.Exec(ctx, pgschema.Query(files, "reveal", schema), e.Key, e.State, by)
		return err
	})
}

// ListAudit returns the decisions in the schema ("" means "millrace"), the last first. It uses its own transaction.
func ListAudit(ctx context.Context, db pgtx.DB, schema string, p AuditPage) ([]Audit, error) {
	return operator.ReadAudit[Audit](ctx, db, migrations.In, schema, func(schema string) string { return pgschema.Query(files, "audited", schema) }, p)
}
