package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/outbox"
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

// Republish hands events to another topic, for instance one for events that need another program. It takes dead events, unless States
// says otherwise ("dead", "retrying", "blocked"). One transaction writes them into the outbox of the same schema, in their former order
// and with their IDs, keys and metadata, and discards them here. So a consumer that has handled an event, or whose dead letter
// this was, takes the published event for a duplicate. An operator's role must be a writer, too (outboxadmin.GrantRoles). If an event
// cannot be published (outbox.ErrInvalidMessage), Republish ends before it. It commits after each 100 events.
func Republish(ctx context.Context, db pgtx.DB, schema string, s Selection, topic string, by By) (Result, error) {
	if topic == "" || topic == s.Topic {
		return Result{}, fmt.Errorf("redirect failed events: the other topic is %q: want one that differs from Selection.Topic", topic)
	}
	detail, err := json.Marshal(map[string]string{"to_topic": topic})
	if err != nil {
		return Result{}, fmt.Errorf("redirect failed events: %w", err)
	}
	return republishing(topic, string(detail)).all(ctx, db, schema, s, by)
}

func republishing(topic, detail string) action {
	return action{
		name: "redirect", may: []string{"dead", "retrying", "blocked"}, detail: detail, page: 100,
		do: func(ctx context.Context, tx pgx.Tx, schema string, on acting, _ *Result) error {
			out, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
			if err != nil {
				return err
			}
			rows, err := tx.Query(ctx, query("show", schema), on.ids, true)
			if err != nil {
				return err
			}
			events, err := pgx.CollectRows(rows, scanFailed)
			if err != nil {
				return err
			}
			for _, e := range events {
				msg := message.NewMessageWithContext(ctx, e.uuid, e.Payload)
				msg.Metadata = e.Metadata
				if err := out.Publish(topic, msg); err != nil {
					return fmt.Errorf("event %q of consumer %q: %w", e.EventID, e.Consumer, err)
				}
			}
			_, err = tx.Exec(ctx, query("discard", schema), on.ids)
			return err
		},
	}
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
