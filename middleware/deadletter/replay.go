package deadletter

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// Replay has events tried again at once, in their former order, with all attempts: dead ones, unless States says otherwise
// ("dead", "retrying"). A service delivers them whose handler's subscriber is wrapped by Claim.Subscriber; without one they
// wait. Events may be older than the records that are kept: the operator vouches that they were not processed. Replay
// commits after each 1,000 events. For many events use BeginReplay.
func Replay(ctx context.Context, db pgtx.DB, schema string, s Selection, by By) (Result, error) {
	return replaying(nil).all(ctx, db, schema, s, by)
}

// replaying is the action of the replay with the ID, which has a pace, or of Replay if id is nil.
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
