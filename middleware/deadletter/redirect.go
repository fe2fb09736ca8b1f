package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// ErrNoSuchConsumer means that no process has run with the consumer's name yet.
var ErrNoSuchConsumer = errors.New("no consumer of that name has run on this database")

// Redirect moves events to another consumer ("service/handler"), for instance after a handler was renamed or its work was moved to
// another service. It moves dead events, unless States says otherwise ("dead", "retrying", "blocked"). The other consumer tries them
// at once, in their former order, with all attempts, as after Replay. The former consumer does not have them any more. Redeliveries to
// either consumer count as duplicates. Selected events of the other consumer itself are left unchanged.
//
// If the other consumer has handled an event already, or keeps it as failed, the event has no second effect: Redirect only discards
// it here and counts it in Result.Known. As with Replay, the operator vouches for events that are older than the other consumer's
// records. Redirect commits after each 1,000 events.
func Redirect(ctx context.Context, db pgtx.DB, schema string, s Selection, consumer string, by By) (Result, error) {
	if consumer == "" || consumer == s.Consumer {
		return Result{}, fmt.Errorf("redirect failed events: the other consumer is %q: want one that differs from Selection.Consumer", consumer)
	}
	detail, err := json.Marshal(map[string]string{"to": consumer})
	if err != nil {
		return Result{}, fmt.Errorf("redirect failed events: %w", err)
	}
	return redirecting(consumer, string(detail)).all(ctx, db, schema, s, by)
}

func redirecting(consumer, detail string) action {
	return action{
		name: "redirect", may: []string{"dead", "retrying", "blocked"}, detail: detail, except: consumer,
		do: func(ctx context.Context, tx pgx.Tx, schema string, on acting, r *Result) error {
			var to int16
			err := tx.QueryRow(ctx, query("consumer", schema), consumer).Scan(&to)
			if errors.Is(err, pgx.ErrNoRows) {
				return fmt.Errorf("%w: %q", ErrNoSuchConsumer, consumer)
			}
			if err != nil {
				return err
			}
			fresh, err := settleFor(ctx, tx, schema, on.ids, to)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, query("keys", schema), fresh.consumers, fresh.keys); err != nil {
				return err
			}
			rows, err := tx.Query(ctx, query("redirect", schema), fresh.ids, to)
			if err != nil {
				return err
			}
			moved, err := pgx.CollectRows(rows, pgx.RowTo[int64])
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, query("discard", schema), on.ids); err != nil {
				return err
			}
			r.Known += len(on.ids) - len(fresh.ids)
			return replaying(nil).do(ctx, tx, schema, acting{ids: moved}, r)
		},
	}
}

// settleFor records the events as settled for the consumer, and returns those that were not settled before.
func settleFor(ctx context.Context, tx pgx.Tx, schema string, ids []int64, consumer int16) (fresh acting, err error) {
	rows, err := tx.Query(ctx, query("redirect_settle", schema), ids, consumer)
	if err != nil {
		return fresh, err
	}
	var id int64
	var key string
	_, err = pgx.ForEachRow(rows, []any{&id, &key}, func() error {
		fresh.ids, fresh.consumers, fresh.keys = append(fresh.ids, id), append(fresh.consumers, consumer), append(fresh.keys, key)
		return nil
	})
	return fresh, err
}
