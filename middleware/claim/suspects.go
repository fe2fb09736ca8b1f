package claim

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/pgschema"
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
		rows, err := tx.Query(ctx, pgschema.Query(files, "claim_suspects", schema), limit)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Suspect])
		return err
	})
	return found, err
}
