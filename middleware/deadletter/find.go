package deadletter

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

// Location is the state of an event for one consumer. Times are by the server's clock.
type Location struct {
	Consumer string `json:"consumer"`
	// Claimed is when the record of the event was written. The event was processed then, or, if Failed is in another state than
	// "nacked", it was stored among the failed events. Nil: there is no record.
	Claimed *time.Time `json:"claimed,omitempty"`
	// Kept reports that no handler's transaction wrote that record: the event had failed, was blocked or was settled by a person. When
	// it succeeded later, if it did, is not recorded.
	Kept bool `json:"kept,omitempty"`
	// Committed is when the transaction of that record committed. Claimed is when it began, so the time between them is that of the
	// handler and its claim. Nil: Kept is set, or the server does not keep it (track_commit_timestamp is off, or was when it committed).
	Committed *time.Time `json:"committed,omitempty"`
	Failed    *Event     `json:"failed,omitempty"` // as Show returns it
	Holder    *Holder    `json:"holder,omitempty"` // the session that is handling it
	// Behind is the ID of the earlier event of its key that blocks it; BehindState is that event's state: "retrying", "blocked" or "dead".
	Behind      string `json:"behind,omitempty"`
	BehindState string `json:"behind_state,omitempty"`
	// TooOld reports that the event's ID was made before Floor, the retention watermark, so the event would not be run: see claim.ErrTooOld.
	TooOld bool       `json:"too_old,omitempty"`
	Floor  *time.Time `json:"floor,omitempty"`
	// Starts is how often the event was run alone after it was in flight when a process was killed; nil: it is not marked.
	Starts *int `json:"starts,omitempty"`
	// Audit is the actions of operators on the event, the latest first. A discarded or purged event has a record as if it
	// had been processed.
	Audit []Audit   `json:"audit,omitempty"`
	Now   time.Time `json:"now"`
}

// maxAudit is how many rows of the audit Find reads.
const maxAudit = 1000

// Holder is the database session that holds a claim.
type Holder struct {
	PID         int        `json:"pid"`
	Application string     `json:"application,omitempty"`
	Client      string     `json:"client,omitempty"` // network address
	Since       *time.Time `json:"since,omitempty"`  // begin of its transaction
}

// Find returns the state of the event for each consumer in the schema ("" means "millrace"). It uses key.EventID, and, if they
// are set, key.Order (the event's ordering key) and key.Due. Without Due it does not find the record of a delayed event. EventID may
// also be a record's ID, as in claim.Suspect. A UUID may have any spelling. Find takes no locks.
func Find(ctx context.Context, db pgtx.DB, schema string, key claim.Key) (found []Location, err error) {
	schema, err = pgschema.Validate(schema)
	if err != nil {
		return nil, err
	}
	called := []string{key.EventID} // spellings of the ID in tables that store it as text
	records := []pgtype.UUID{inbox.Record(key.EventID, key.Due), inbox.Record(key.EventID, time.Time{}), inbox.Hash(key.EventID)}
	if id, err := uuid.Parse(key.EventID); err == nil {
		called, records = append(called, id.String()), append(records, inbox.Stored(id))
	}
	err = administer(ctx, db, schema, "find event", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, query("consumers", schema))
		if err != nil {
			return err
		}
		consumers, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		var locks []int64
		for _, name := range consumers {
			locks = append(locks, inbox.Lock(schema, name, inbox.Canonical(key.EventID)))
		}
		rows, err = tx.Query(ctx, query("find", schema), consumers, locks, records, key.EventID, inbox.OrderKey(key.Order), inbox.Silent.Seconds())
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l Location, err error) {
			var h Holder
			var name string
			err = row.Scan(&l.Consumer, &l.Claimed, &l.Kept, &l.Committed, &l.Floor, &h.PID, &h.Application, &h.Client, &h.Since, &l.Starts, &name, &l.Behind, &l.BehindState, &l.Now)
			if name != "" {
				called = append(called, name)
			}
			if h.PID != 0 {
				l.Holder = &h
			}
			minted, known := inbox.Time(inbox.Record(key.EventID, key.Due))
			l.TooOld = known && l.Floor != nil && minted.Before(*l.Floor)
			return l, err
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(called)
	for _, name := range slices.Compact(called) {
		if err := addHistory(ctx, db, schema, name, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// addHistory adds the failures of the event and the actions of operators on it. name is a spelling of the event's ID.
func addHistory(ctx context.Context, db pgtx.DB, schema, name string, found []Location) error {
	failed, err := Show(ctx, db, schema, name, "")
	if err != nil {
		return err
	}
	audit, err := ListAudit(ctx, db, schema, AuditListing{EventID: name, AuditPage: AuditPage{Limit: maxAudit}})
	if err != nil {
		return err
	}
	for i := range found {
		for _, f := range failed {
			if f.Consumer == found[i].Consumer {
				found[i].Failed = &f
			}
		}
		for _, a := range audit {
			if a.Consumer == found[i].Consumer {
				found[i].Audit = append(found[i].Audit, a)
			}
		}
	}
	return nil
}
