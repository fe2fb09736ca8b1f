package outboxadmin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

// Location is a place where an event is, or was, on its way to the broker. Times are the server's.
type Location struct {
	// State is "pending": unpublished; "retrying", "blocked" (by an earlier event of its key), "dead" or "discarded": it could
	// not be published, see List; "delayed": it is not due; "archived": it was published.
	State    string            `json:"state"`
	Shard    int               `json:"shard"`
	Topic    string            `json:"topic"`
	Key      string            `json:"key,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Written  time.Time         `json:"written"`            // to this place, for one that was delayed
	At       *time.Time        `json:"at,omitempty"`       // retrying: the next attempt; delayed: due; archived: published; else when it failed
	Attempts int               `json:"attempts,omitempty"` // that failed; archived: all of them
	Reason   string            `json:"reason,omitempty"`
	Command  string            `json:"command,omitempty"` // an operator's, "retry" or "discard", that the relay is to carry out
	Before   Count             `json:"before"`            // events of its shard that are sent before it
	Behind   string            `json:"behind,omitempty"`  // the first event of its key that holds it up
	// BehindState is that event's: "retrying", "blocked" or "dead".
	BehindState string    `json:"behind_state,omitempty"`
	Relay       string    `json:"relay,omitempty"` // the holder of its shard's lease, by name or ID; archived: the relay that sent it
	Held        bool      `json:"held"`            // that lease has not expired
	Suspect     bool      `json:"suspect,omitempty"`
	Deaths      int       `json:"deaths,omitempty"` // of relays that were sending it alone
	Now         time.Time `json:"now"`
}

// Find returns where the event is. It returns nothing if the event was never committed, or was published and is not
// archived. It reads the whole outbox, which has no index on event IDs. It takes no locks, and needs no privilege but SELECT.
func Find(ctx context.Context, db pgtx.DB, schema, eventID string) ([]Location, error) {
	found, _, err := FindWithin(ctx, db, schema, eventID, 0)
	return found, err
}

// FindWithin is Find with a limit on how long the server may read the outbox, 0 for none. If it takes longer, complete is false, and what
// was found is in the tables that have an index on event IDs: of failed, delayed and archived events.
func FindWithin(ctx context.Context, db pgtx.DB, schema, eventID string, patience time.Duration) (found []Location, complete bool, err error) {
	err = administer(ctx, db, schema, "find event", func(ctx context.Context, tx pgx.Tx, schema string) error {
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) { // a savepoint
			if patience > 0 {
				if err := limitTime(ctx, tx, patience); err != nil {
					return err
				}
			}
			found, err = find(ctx, tx, schema, eventID, true)
			return err
		})
		if complete = !tookTooLong(err); !complete {
			found, err = find(ctx, tx, schema, eventID, false)
		}
		return err
	}, pgtx.Isolation(pgx.RepeatableRead)) // one snapshot
	return found, complete, err
}

// limitTime bounds how long each statement of the transaction takes the server.
func limitTime(ctx context.Context, tx pgx.Tx, patience time.Duration) error {
	_, err := tx.Exec(ctx, `select set_config('statement_timeout', $1::text, true)`, strconv.FormatInt(max(patience.Milliseconds(), 1), 10))
	return err
}

// tookTooLong reports whether a statement ended because of limitTime.
func tookTooLong(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "57014"
}

func find(ctx context.Context, tx pgx.Tx, schema, eventID string, everywhere bool) ([]Location, error) {
	rows, err := tx.Query(ctx, query("find", schema), eventID, countLimit, everywhere)
	if err != nil {
		return nil, err
	}
	ids := []*int64{} // among the failed events
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l Location, err error) {
		var headers []byte
		var id *int64
		err = row.Scan(&l.State, &l.Shard, &l.Topic, &l.Key, &headers, &l.Written, &l.At, &l.Attempts, &l.Reason, &l.Command,
			&l.Before.N, &id, &l.Relay, &l.Held, &l.Suspect, &l.Deaths, &l.Now)
		ids = append(ids, id)
		l.Before.AtLeast = l.Before.N == countLimit
		if !l.Suspect {
			l.Deaths = 0 // they are another event's
		}
		if err == nil {
			if err = json.Unmarshal(headers, &l.Metadata); err != nil {
				err = fmt.Errorf("the event's headers: %w", err)
			}
		}
		return l, err
	})
	for i := range found {
		if err == nil {
			err = found[i].findBehind(ctx, tx, schema, ids[i])
		}
	}
	return found, err
}

// findBehind fills in the event of its key that blocks the event. It is a statement of its own, because the outbox has no
// column for the hash of the key.
func (l *Location) findBehind(ctx context.Context, tx pgx.Tx, schema string, id *int64) error {
	if l.Key == "" || l.State != "pending" && l.State != "blocked" {
		return nil
	}
	err := tx.QueryRow(ctx, query("find_behind", schema), l.Shard, store.Hash(l.Key, ""), l.Key, id).Scan(&l.Behind, &l.BehindState)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}
