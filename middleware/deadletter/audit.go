package deadletter

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

// By says who acts: Actor, which must not be "", and Note, which says why. Each action leaves a row for each event, which ListAudit
// returns.
type By = operator.By

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
		rows, err := tx.Query(ctx, query("audited", schema), operator.Optional(inbox.Canonical(eventID)), operator.Optional(consumer), limit)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Audit])
		return err
	})
	return found, err
}
