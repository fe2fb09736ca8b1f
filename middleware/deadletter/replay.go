package deadletter

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// Replay has events tried again at once and with all their attempts, in their former order: dead ones, unless States says
// otherwise ("dead", "retrying"). They are brought back by a service whose handler's subscriber is wrapped by
// Claim.Subscriber; where none runs they wait for one. That the records of their time may be gone does not matter: the
// operator vouches for them. It commits after each 1,000 events. BeginReplay is for many events.
func Replay(ctx context.Context, db pgtx.DB, schema string, s Selection, by By) (Result, error) {
	return replaying(nil).all(ctx, db, schema, s, by)
}

// replaying is the action of a replay that keeps a pace, or, without an ID, of one that does not.
func replaying(id *int64) action {
	detail := ""
	if id != nil {
		detail = fmt.Sprintf(`{"replay": %d}`, *id)
	}
	return action{
		name: "replay", may: []string{"dead", "retrying"}, detail: detail,
		do: func(ctx context.Context, tx pgx.Tx, schema string, on acting, r *Result) error {
			rows, err := tx.Query(ctx, query("replay", schema), on.ids)
			if err != nil {
				return err
			}
			behind, err := pgx.CollectRows(rows, pgx.RowTo[bool])
			if err == nil && id != nil {
				_, err = tx.Exec(ctx, query("replay_event", schema), on.ids, *id)
			}
			for _, b := range behind {
				if b {
					r.Behind++
				}
			}
			return err
		},
	}
}
