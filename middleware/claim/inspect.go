package claim

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

// Suspect is an event that may kill the processes that handle it: see Claim.Run.
type Suspect struct {
	Consumer string    `json:"consumer"`
	Record   string    `json:"record"` // the event's ID where that is a UUIDv7 of an event that was not delayed, else a hash of it
	Starts   int       `json:"starts"` // how often it was begun alone and not ended
	Process  string    `json:"process,omitempty"`
	Noted    time.Time `json:"noted"` // the last time; the server's
}

// Suspects returns up to limit events of the schema ("" means "millrace") that were begun alone after they had been in hand
// when a process was killed, and have not ended. It takes no locks.
func Suspects(ctx context.Context, db pgtx.DB, schema string, limit int) (found []Suspect, err error) {
	err = operator.Run(ctx, db, Migrations, schema, "list suspects", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, store.Query("claim_suspects", schema), limit)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Suspect])
		return err
	})
	return found, err
}

// Pauses returns the consumers of the schema ("" means "millrace") that Config.Breaker has paused, in each process that runs Claim.Run.
// A process reports them every 2 s. It takes no locks.
func Pauses(ctx context.Context, db pgtx.DB, schema string) (found []Pause, err error) {
	err = operator.Run(ctx, db, Migrations, schema, "list pauses", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, store.Query("run_paused", schema), inbox.Silent.Seconds())
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Pause])
		return err
	})
	return found, err
}

// FullKey is a key behind whose first event no more events are kept: see Config.MaxBlocked.
type FullKey struct {
	Consumer string    `json:"consumer"`
	Key      string    `json:"key"`
	Blocked  int       `json:"blocked"` // at most, since operators may have taken some away
	Since    time.Time `json:"since"`   // the server's
}

// FullKeys returns up to limit keys of the schema ("" means "millrace") that are full by Config.MaxBlocked. It takes no locks.
func FullKeys(ctx context.Context, db pgtx.DB, schema string, limit int) (found []FullKey, err error) {
	err = operator.Run(ctx, db, Migrations, schema, "list full keys", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, store.Query("key_full", schema), limit)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[FullKey])
		return err
	})
	return found, err
}

// pauses is what Run reports of the consumers that are paused, as JSON. Clocks differ, so it has no times.
func (c *Claim) pauses(now time.Time) json.RawMessage {
	type pause struct {
		Consumer string  `json:"consumer"`
		Seconds  float64 `json:"seconds"`
		Left     float64 `json:"left"` // seconds
		Error    string  `json:"error"`
	}
	all := []pause{}
	for _, p := range c.Paused() {
		all = append(all, pause{p.Consumer, now.Sub(p.Since).Seconds(), p.Until.Sub(now).Seconds(), p.Error})
	}
	text, err := json.Marshal(all)
	if err != nil { // it has nothing that could not be written
		return json.RawMessage("[]")
	}
	return text
}
