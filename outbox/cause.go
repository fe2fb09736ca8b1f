package outbox

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// CauseMetadata is the metadata entry that names the event whose handler published this one under a claim, by its ID.
// Publish writes it, over what a handler may have copied; not where it alone would exceed PublisherConfig.Limits, nor an ID of
// more than 255 bytes.
const CauseMetadata = "millrace_cause"

type causeKey struct{}

// WithCause returns a context in which the event of that ID is handled: what is published with it has it as CauseMetadata.
// A claim.Claim does that.
func WithCause(ctx context.Context, eventID string) context.Context {
	return context.WithValue(ctx, causeKey{}, eventID)
}

func causeOf(ctx context.Context) string {
	id, _ := ctx.Value(causeKey{}).(string)
	return id
}

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

// Outputs returns up to limit events that the handlers of the event have published, those that are in the schema ("" means
// "millrace") still: what was sent is there only where relays archive. It reads the outbox, and the days of the archive from
// since on, from end to end; where that takes the server longer than patience the error has PostgreSQL's code 57014. It
// takes no locks, and asks for no privilege but SELECT.
func Outputs(ctx context.Context, db pgtx.DB, schema, eventID string, since time.Time, patience time.Duration, limit int) (found []Output, err error) {
	entry, err := json.Marshal(message.Metadata{CauseMetadata: eventID}) // as it stands in the headers, which are written so
	if err != nil {
		return nil, err
	}
	entry = entry[1 : len(entry)-1]
	err = administer(ctx, db, schema, "find outputs", func(ctx context.Context, tx pgx.Tx, schema string) error {
		if _, err := tx.Exec(ctx, `select set_config('statement_timeout', $1::text, true)`, strconv.FormatInt(patience.Milliseconds(), 10)); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, pgschema.Query(files, "outputs", schema), entry, since, limit)
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
