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

// Suspect is an event that may have killed the processes that handled it: see Claim.Run.
type Suspect struct {
	Consumer string    `json:"consumer"`
	Record   string    `json:"record"` // the event's ID if it is a UUIDv7 and the event was not delayed, else a hash of the ID
	Starts   int       `json:"starts"` // number of times that it was run alone and did not end
	Process  string    `json:"process,omitempty"`
	Noted    time.Time `json:"noted"` // time of the latest such run, by the server's clock
}

// Suspects returns up to limit events of the schema ("" means "millrace") that were in flight when a process was killed, were
// then run alone, and have not ended. It takes no locks.
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

// Pauses returns the consumers of the schema ("" means "millrace") that Config.Breaker has paused, for each process that runs
// Claim.Run. A process reports its pauses every 2 s. Pauses takes no locks.
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

// FullKey is a key that has as many blocked events as Config.MaxBlocked allows.
type FullKey struct {
	Consumer string    `json:"consumer"`
	Key      string    `json:"key"`
	Blocked  int       `json:"blocked"` // upper bound of the number of blocked events: operators may have removed some
	Since    time.Time `json:"since"`   // by the server's clock
}

// FullKeys returns up to limit keys of the schema ("" means "millrace") that are full: see Config.MaxBlocked. It takes no locks.
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

// pauses returns the paused consumers as JSON, for Run to report. It contains durations and no times, because clocks differ.
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
	if err != nil { // cannot happen: every field can be encoded
		return json.RawMessage("[]")
	}
	return text
}
