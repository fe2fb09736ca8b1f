package outboxadmin

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// ErrNotSet is wrapped by the error of ResumeTopic for a topic that is not paused, and by that of EndRedirect for one that is not
// redirected. Compare the topic's name with those that Inspect reports.
var ErrNotSet = errors.New("nothing of that kind is set for the topic")

// PauseTopic makes relays publish no more events of the topic, also relays that start later, until ResumeTopic. A relay that runs
// learns of it at once, or at its next poll; what it is sending then is still published. The events stay in the outbox and keep
// their order. Events of other topics go on, except those that wait for an earlier event of their key.
func PauseTopic(ctx context.Context, db pgtx.DB, schema, topic string, by By) error {
	return onTopic(ctx, db, schema, topicAction{name: "pause", topic: topic}, by, func(ctx context.Context, tx pgx.Tx, schema string) error {
		_, err := tx.Exec(ctx, query("topic_pause", schema), topic, by.Actor, by.Note)
		return err
	})
}

// ResumeTopic ends a pause. The events that waited are published in order. If the topic is not paused, the error wraps ErrNotSet.
func ResumeTopic(ctx context.Context, db pgtx.DB, schema, topic string, by By) error {
	return onTopic(ctx, db, schema, topicAction{name: "resume", topic: topic}, by, func(ctx context.Context, tx pgx.Tx, schema string) error {
		return unset(ctx, tx, query("topic_resume", schema), topic)
	})
}

// RedirectTopic makes relays publish the topic's events to another topic, those that are in the outbox and new ones, until
// EndRedirect. Events of a key keep their order, also with those of the other topic. If the other topic is paused, the events
// wait. The archive keeps an event under the topic that it was written to. A topic that is redirected cannot be the destination of
// another redirect.
func RedirectTopic(ctx context.Context, db pgtx.DB, schema, topic, to string, by By) error {
	if to == "" || to == topic {
		return fmt.Errorf("redirect topic %q: the destination is %q: want another topic", topic, to)
	}
	return onTopic(ctx, db, schema, topicAction{name: "redirect", topic: topic, to: to}, by, func(ctx context.Context, tx pgx.Tx, schema string) error {
		if _, err := tx.Exec(ctx, query("topic_lock", schema)); err != nil {
			return err
		}
		var from, next string
		switch err := tx.QueryRow(ctx, query("topic_chain", schema), topic, to).Scan(&from, &next); {
		case err == nil:
			return fmt.Errorf("topic %q is redirected to %q, and a topic may be redirected only once: end that redirect first", from, next)
		case !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		_, err := tx.Exec(ctx, query("topic_redirect", schema), topic, to, by.Actor, by.Note)
		return err
	})
}

// EndRedirect makes relays publish the topic's events to the topic itself again. If the topic is not redirected, the error wraps
// ErrNotSet.
func EndRedirect(ctx context.Context, db pgtx.DB, schema, topic string, by By) error {
	return onTopic(ctx, db, schema, topicAction{name: "end redirect", topic: topic}, by, func(ctx context.Context, tx pgx.Tx, schema string) error {
		return unset(ctx, tx, query("topic_redirect_end", schema), topic)
	})
}

func unset(ctx context.Context, tx pgx.Tx, sql, topic string) error {
	var n int64
	err := tx.QueryRow(ctx, sql, topic).Scan(&n)
	if err == nil && n == 0 {
		return ErrNotSet
	}
	return err
}

// topicAction is what an operator does to a topic.
type topicAction struct {
	name, topic, to string
}

// onTopic changes what is set for a topic, records who did it, and tells the relays.
func onTopic(ctx context.Context, db pgtx.DB, schema string, a topicAction, by By, f func(context.Context, pgx.Tx, string) error) error {
	err := by.Validate()
	if a.topic == "" {
		err = errors.Join(err, errors.New("the topic's name is empty"))
	}
	if err != nil {
		return fmt.Errorf("%s topic: %w", a.name, err)
	}
	return administer(ctx, db, schema, fmt.Sprintf("%s topic %q", a.name, a.topic), func(ctx context.Context, tx pgx.Tx, schema string) error {
		if err := f(ctx, tx, schema); err != nil {
			return err
		}
		if _, err := audit(ctx, tx, schema, by, a.name, 0, auditDetail{Topic: a.topic, To: a.to}); err != nil {
			return err
		}
		return tellRelays(ctx, tx, schema)
	}, pgtx.Isolation(pgx.ReadCommitted)) // after the lock it sees what was set meanwhile
}
