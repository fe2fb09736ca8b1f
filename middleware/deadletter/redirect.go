package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// ErrNoSuchConsumer means that no process has run under that consumer's name yet.
var ErrNoSuchConsumer = errors.New("no consumer of that name has run on this database")

// Redirect hands events to another consumer ("service/handler"), for instance when a handler was renamed or its work moved to another
// service. That consumer tries each of them at once and with all its attempts, in their former order, as in Replay, and the first
// one no longer has it: dead ones, unless States says otherwise ("dead", "retrying", "blocked"). What the broker redelivers to either
// is absorbed.
// What the selection has of the other consumer itself is left alone.
//
// An event that the other consumer has handled already, or keeps itself, has no second effect: it is only discarded here, and
// Result.Known counts it. As with Replay, the operator vouches for an event that is older than the other consumer's records. It
// commits after each 1,000 events.
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

// settleFor records the events as settled for the consumer, and returns those that were not.
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
