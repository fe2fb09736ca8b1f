package outboxadmin

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// ErrNotPaused is wrapped by ResumeTopic's error when the topic is not paused. Compare its name with those that Inspect reports.
var ErrNotPaused = errors.New("the topic is not paused")

// Pause says which topic is paused, by whom and why. By and Reason are shown to other operators.
type Pause struct {
	Topic, By, Reason string
}

// PauseTopic makes relays publish no more events of the topic, also relays that start later, until ResumeTopic. A relay that runs
// learns of it at once, or at its next poll; what it is sending then is still published. The events stay in the outbox and keep
// their order. Events of other topics go on, except those that wait for an earlier event of their key.
func PauseTopic(ctx context.Context, db pgtx.DB, schema string, p Pause) error {
	return onTopic(ctx, db, schema, "pause", p.Topic, func(ctx context.Context, tx pgx.Tx, schema string) error {
		_, err := tx.Exec(ctx, query("topic_pause", schema), p.Topic, p.By, p.Reason)
		return err
	})
}

// ResumeTopic ends a pause. The events that waited are published in order. If the topic is not paused, the error wraps ErrNotPaused.
func ResumeTopic(ctx context.Context, db pgtx.DB, schema, topic string) error {
	return onTopic(ctx, db, schema, "resume", topic, func(ctx context.Context, tx pgx.Tx, schema string) error {
		done, err := tx.Exec(ctx, query("topic_resume", schema), topic)
		if err == nil && done.RowsAffected() == 0 {
			return ErrNotPaused
		}
		return err
	})
}

// onTopic changes what is set for a topic, and tells the relays.
func onTopic(ctx context.Context, db pgtx.DB, schema, action, topic string, f func(context.Context, pgx.Tx, string) error) error {
	if topic == "" {
		return fmt.Errorf("%s topic: the name is empty", action)
	}
	return administer(ctx, db, schema, fmt.Sprintf("%s topic %q", action, topic), func(ctx context.Context, tx pgx.Tx, schema string) error {
		if err := f(ctx, tx, schema); err != nil {
			return err
		}
		return tellRelays(ctx, tx, schema)
	})
}
