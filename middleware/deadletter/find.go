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

// Location is how an event stands with one consumer. Times are the server's.
type Location struct {
	Consumer string `json:"consumer"`
	// Claimed is when its record was written: it was processed then, or, where Failed is in a state other than "nacked", it
	// is kept there. Nil: there is no record.
	Claimed *time.Time `json:"claimed,omitempty"`
	Failed  *Event     `json:"failed,omitempty"` // as Show has it
	Holder  *Holder    `json:"holder,omitempty"` // who has it in hand
	// Behind is the first event of its key that holds it up, and BehindState that one's state: "retrying", "blocked" or "dead".
	Behind      string `json:"behind,omitempty"`
	BehindState string `json:"behind_state,omitempty"`
	// TooOld says that it was minted before Floor, so that it would not be run: see claim.ErrTooOld.
	TooOld bool       `json:"too_old,omitempty"`
	Floor  *time.Time `json:"floor,omitempty"`
	// Starts is how often it was begun alone after it was in hand when a process was killed; nil: it is not noted.
	Starts *int `json:"starts,omitempty"`
	// Audit is what operators did to it, the last first. An event that was discarded, or purged, has a record as if it had
	// been processed.
	Audit []Audit   `json:"audit,omitempty"`
	Now   time.Time `json:"now"`
}

// maxAudit bounds how far back Find looks.
const maxAudit = 1000

// Holder is the session of the database that holds a claim.
type Holder struct {
	PID         int        `json:"pid"`
	Application string     `json:"application,omitempty"`
	Client      string     `json:"client,omitempty"` // its address
	Since       *time.Time `json:"since,omitempty"`  // when its transaction began
}

// Find tells how the event stands with each consumer in the schema ("" means "millrace"). Of key the fields Order, the
// event's key, and Due are used where they are known; a delayed event's record is not found without Due. In place of an ID
// it takes a record, as claim.Suspects has them; a UUID may be spelt in any way. It takes no locks.
func Find(ctx context.Context, db pgtx.DB, schema string, key claim.Key) (found []Location, err error) {
	schema, err = pgschema.Validate(schema)
	if err != nil {
		return nil, err
	}
	called := []string{key.EventID} // what it may be in tables that go by text
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
			err = row.Scan(&l.Consumer, &l.Claimed, &l.Floor, &h.PID, &h.Application, &h.Client, &h.Since, &l.Starts, &name, &l.Behind, &l.BehindState, &l.Now)
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

// addHistory adds how the event of this name failed, and what operators did to it.
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
