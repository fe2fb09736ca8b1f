package idempotencykey

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// Audit is one operator's action on a stored answer.
type Audit struct {
	ID      int64     `json:"id"`
	At      time.Time `json:"at"`
	Actor   string    `json:"actor"`
	Action  string    `json:"action"` // "forget", "reveal"
	Service string    `json:"service"`
	Key     string    `json:"key"`
	Request string    `json:"request"` // method and path
	Status  int       `json:"status"`  // of the answer
	Note    string    `json:"note"`
}

// AuditPage selects a page of the audit, which is read from the last action backwards.
type AuditPage = operator.AuditPage

// AuditReveal notes in the audit that an operator is about to see a stored answer. Nothing of the answer is noted. Show notes nothing.
func AuditReveal(ctx context.Context, db pgtx.DB, schema string, e Entry, by By) error {
	if by.Actor == "" {
		return errors.New("note a reveal: By.Actor is empty: want the name of who does it")
	}
	return operator.Run(ctx, db, migrations.In, schema, "note a reveal", func(ctx context.Context, tx pgx.Tx, schema string) error {
		_, err := tx.Exec(ctx, pgschema.Query(files, "revealed", schema), by.Actor, e.Service, e.Key, e.Request, e.Status, e.Created, by.Note)
		return err
	})
}

// ListAudit returns the operators' actions in the schema ("" means "millrace"), the last first.
func ListAudit(ctx context.Context, db pgtx.DB, schema string, p AuditPage) ([]Audit, error) {
	return operator.ReadAudit[Audit](ctx, db, migrations.In, schema, func(schema string) string { return pgschema.Query(files, "audited", schema) }, p)
}
