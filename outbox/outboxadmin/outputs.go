package outboxadmin

import (
	"context"
	"encoding/json"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// Output is an event that has a cause. Times are the server's.
type Output struct {
	EventID  string            `json:"event_id"`
	State    string            `json:"state"` // as in Location
	Topic    string            `json:"topic"`
	Key      string            `json:"key,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Written  time.Time         `json:"written"`
	At       *time.Time        `json:"at,omitempty"` // as in Location
}

// FindOutputs returns up to limit events that the handlers of the event have published and that are still stored: those that
// were sent are stored only if relays archive. It reads the whole outbox, and the archive from the day of since on. If that
// takes the server longer than patience, the error has PostgreSQL's code 57014. It takes no locks, and needs no privilege but
// SELECT.
func FindOutputs(ctx context.Context, db pgtx.DB, schema, eventID string, since time.Time, patience time.Duration, limit int) (found []Output, err error) {
	entry, err := json.Marshal(message.Metadata{outbox.CauseMetadata: eventID}) // as it stands in the headers, which are written so
	if err != nil {
		return nil, err
	}
	entry = entry[1 : len(entry)-1]
	err = administer(ctx, db, schema, "find outputs", func(ctx context.Context, tx pgx.Tx, schema string) error {
		if err := limitTime(ctx, tx, patience); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, query("find_outputs", schema), entry, since, limit)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Output, err error) {
			var headers []byte
			if err = row.Scan(&o.EventID, &o.State, &o.Topic, &o.Key, &headers, &o.Written, &o.At); err == nil {
				err = json.Unmarshal(headers, &o.Metadata)
			}
			return o, err
		})
		return err
	}, pgtx.Isolation(pgx.RepeatableRead)) // one snapshot: an event that is being archived is in one place
	return found, err
}
