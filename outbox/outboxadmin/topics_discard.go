package outboxadmin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

// ErrNotPaused is wrapped by DiscardPending's error when the topic is not paused. Pause it first: otherwise a relay may publish an
// event that is being discarded.
var ErrNotPaused = errors.New("the topic is not paused")

const (
	// discardBatch is how many events one transaction discards, and discardBytes how many bytes, one larger event apart.
	discardBatch, discardBytes = 500, 8 << 20
	// discardPoll is how often a discard looks whether the relays know of the pause.
	discardPoll = 100 * time.Millisecond
	// discardPatience is how long it waits for them.
	discardPatience = time.Minute
)

// PendingSelection selects pending events of a topic.
type PendingSelection struct {
	Topic     string
	OlderThan time.Duration // those that were written longer ago. Default: all that are there when the discard begins
	Limit     int64         // at most so many. Default: no limit
}

func (s PendingSelection) validate() error {
	var errs []error
	if s.Topic == "" {
		errs = append(errs, errors.New("Topic is empty: want the name of a paused topic"))
	}
	if s.OlderThan < 0 {
		errs = append(errs, fmt.Errorf("OlderThan is %s: want 0 or more", s.OlderThan))
	}
	if s.Limit < 0 {
		errs = append(errs, fmt.Errorf("Limit is %d: want 1 or more, or 0 for no limit", s.Limit))
	}
	return errors.Join(errs...)
}

// DiscardPending discards pending events of a paused topic, and returns how many, also with an error. First it waits, for up to a
// minute, until each relay has said that it knows of the pause and has no event of the topic in flight, so no event that it
// discards is published. Discarded events are kept until Purge deletes them, and Retry publishes them after all. Later events of
// their keys go on when the topic is resumed.
//
// Each transaction discards up to 500 events. If DiscardPending ends early, those that it has discarded stay discarded, and
// ListAudit says how many they are.
func DiscardPending(ctx context.Context, db pgtx.DB, schema string, s PendingSelection, by By) (n int64, err error) {
	if err := errors.Join(s.validate(), by.Validate()); err != nil {
		return 0, fmt.Errorf("discard pending events: %w", err)
	}
	action := fmt.Sprintf("discard pending events of topic %q", s.Topic)
	d := discard{PendingSelection: s, reason: "discarded by " + by.Actor}
	if d.pause, err = awaitPause(ctx, db, schema, action, s.Topic); err != nil {
		return 0, err
	}
	if by.Note != "" {
		d.reason += ": " + by.Note
	}
	var shards []int16
	err = administer(ctx, db, schema, action, func(ctx context.Context, tx pgx.Tx, schema string) error {
		if err := tx.QueryRow(ctx, `select now() - $1 * interval '1 second'`, s.OlderThan.Seconds()).Scan(&d.until); err != nil {
			return err
		}
		l, err := store.ReadLayout(ctx, tx, schema)
		if err != nil {
			return err
		}
		for i := range l.Shards {
			shards = append(shards, int16(i))
		}
		d.audit, err = audit(ctx, tx, schema, by, "discard", 0, auditDetail{Topic: s.Topic, Until: &d.until})
		return err
	})
	for _, shard := range shards {
		for above := int64(0); err == nil && above >= 0; {
			var moved, last int64
			err = administer(ctx, db, schema, action, func(ctx context.Context, tx pgx.Tx, schema string) (err error) {
				moved, last, err = d.step(ctx, tx, schema, shard, above, n)
				return err
			})
			if err == nil {
				n, above = n+moved, last
			}
		}
	}
	return n, err
}

// awaitPause returns when no live relay sends events of the topic any more, and what tells this pause from others.
func awaitPause(ctx context.Context, db pgtx.DB, schema, action, topic string) (pause int64, err error) {
	deadline, unaware := time.Now().Add(discardPatience), ""
	for {
		err := administer(ctx, db, schema, action, func(ctx context.Context, tx pgx.Tx, schema string) error {
			err := tx.QueryRow(ctx, query("discard_unaware", schema), topic).Scan(&pause, &unaware)
			if errors.Is(err, pgx.ErrNoRows) {
				return fmt.Errorf("%w: pause it first, so that relays publish none of these events meanwhile", ErrNotPaused)
			}
			return err
		})
		switch {
		case ctx.Err() != nil && unaware != "":
			return 0, fmt.Errorf("%s: relay %s has not said that it knows of the pause: %w", action, unaware, context.Cause(ctx))
		case err != nil || unaware == "":
			return pause, err
		case time.Now().After(deadline):
			return 0, fmt.Errorf("%s: relay %s still has events of the topic in flight: try again when its publisher has answered", action, unaware)
		}
		select {
		case <-ctx.Done():
		case <-time.After(discardPoll):
		}
	}
}

// discard is a discard that has begun.
type discard struct {
	PendingSelection
	pause  int64
	until  time.Time
	reason string
	audit  int64
}

// step discards the next events of a shard above a number, after n in all. last is the highest number of those, or negative when
// there are no more.
func (d *discard) step(ctx context.Context, tx pgx.Tx, schema string, shard int16, above, n int64) (moved, last int64, err error) {
	limit := int64(discardBatch)
	if d.Limit > 0 {
		limit = min(limit, d.Limit-n)
	}
	if limit <= 0 {
		return 0, -1, nil
	}
	locked, err := tx.Exec(ctx, query("discard_lock", schema), d.Topic, d.pause)
	switch {
	case err != nil:
		return 0, -1, err
	case locked.RowsAffected() == 0:
		return 0, -1, fmt.Errorf("%w any more: %d events were discarded before", ErrNotPaused, n)
	}
	var (
		seqs, hashes []int64
		ids          []string
		seq          int64
		eventID, key string
	)
	rows, err := tx.Query(ctx, query("discard_read", schema), d.Topic, shard, above, d.until, limit, discardBytes)
	if err != nil {
		return 0, -1, err
	}
	if _, err := pgx.ForEachRow(rows, []any{&seq, &eventID, &key}, func() error {
		seqs, ids, hashes = append(seqs, seq), append(ids, eventID), append(hashes, store.Hash(key, eventID))
		return nil
	}); err != nil || len(seqs) == 0 {
		return 0, -1, err
	}
	err = tx.QueryRow(ctx, query("discard_move", schema), shard, seqs, ids, hashes, d.reason, d.audit).Scan(&moved)
	if err != nil {
		return 0, -1, err
	}
	return moved, seqs[len(seqs)-1], nil
}
