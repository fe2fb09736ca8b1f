package claim

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// By says who acts. Each action leaves a row for each event, which ListAudit returns.
type By struct {
	Actor string // who. It must not be ""
	Note  string // why
}

func (by By) validate() error {
	if by.Actor == "" {
		return errors.New(`By.Actor is "": want the name of who does it`)
	}
	return nil
}

// Audit is what an operator did to an event.
type Audit struct {
	At       time.Time       `json:"at"`
	Actor    string          `json:"actor"`
	Action   string          `json:"action"` // "edit", "replay", "discard", "purge", "purge audit"
	Consumer string          `json:"consumer"`
	EventID  string          `json:"event_id"`
	Detail   json.RawMessage `json:"detail"` // the note, and the event's state, reason and error before
}

// ListAudit returns what operators did, the last first: to an event and for a consumer, "" meaning all, at most so many.
func ListAudit(ctx context.Context, db pgtx.DB, schema, eventID, consumer string, limit int) (found []Audit, err error) {
	err = administer(ctx, db, schema, "list audit", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, pgschema.Query(files, "admin_audited", schema), optional(canonical(eventID)), optional(consumer), limit)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Audit])
		return err
	})
	return found, err
}
