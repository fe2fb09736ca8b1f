package outboxadmin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/pgtx"
)

// States of a replay.
const (
	ReplayRunning = "running" // ContinueReplay goes on with it, in any process
	ReplayStopped = "stopped" // by StopReplay; ResumeReplay has it go on
	ReplayDone    = "done"
)

// ReplayStatus is how far a replay is. Times are the server's.
type ReplayStatus struct {
	ID        int64            `json:"id"`
	Actor     string           `json:"actor"` // who began it
	Note      string           `json:"note,omitempty"`
	Selection ArchiveSelection `json:"selection"`
	To        string           `json:"to,omitempty"` // the topic that its events go to; "": each to its own
	Rate      int              `json:"rate"`         // events a second; 0: no limit, or the replay is done
	State     string           `json:"state"`
	StoppedBy string           `json:"stopped_by,omitempty"`
	Started   time.Time        `json:"started"`
	Stepped   time.Time        `json:"stepped"`      // when it last read the archive. A running one whose last step is long ago is continued by nobody
	At        *time.Time       `json:"at,omitempty"` // when the last event that it has read was published; nil: none was, or it is done
	Events    int64            `json:"events"`       // put into the outbox so far
	Selected  Count            `json:"selected"`     // when it began, as SampleArchive counts; of one that is done, Events
}

// ErrNoSuchReplay means that no replay has the ID, or that it is done.
var ErrNoSuchReplay = errors.New("no such replay, or it is done")

// BeginReplay records a replay of archived events, as Replay does it, and returns its ID. ContinueReplay does the work. Of the
// configuration it takes the selection, To and Rate.
func BeginReplay(ctx context.Context, db pgtx.DB, schema string, c ReplayConfig, by By) (id int64, err error) {
	if err := errors.Join(c.validate(), by.Validate()); err != nil {
		return 0, fmt.Errorf("replay events: %w", err)
	}
	err = administer(ctx, db, schema, "replay events", func(ctx context.Context, tx pgx.Tx, schema string) error {
		var writer bool
		if err := tx.QueryRow(ctx, query("replay_writer", schema)).Scan(&writer); err != nil {
			return err
		}
		if !writer {
			return errors.New("this role may not write to the outbox: " + needsWriter)
		}
		a, err := c.sample(ctx, tx, schema)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, query("replay_begin", schema), by.Actor, by.Note, operator.Optional(c.Topic), operator.Optional(c.Key),
			operator.OptionalTime(c.Since), operator.OptionalTime(c.Until), operator.Optional(c.To), c.Rate, a.Selected.N, a.Selected.AtLeast).Scan(&id)
	})
	return id, err
}

// ContinueReplay replays until the replay is done or was stopped, or ctx has ended, and returns how far it is. Several processes may
// continue one replay: they keep its rate together.
func ContinueReplay(ctx context.Context, db pgtx.DB, schema string, id int64) (ReplayStatus, error) {
	c := ReplayConfig{Resume: id}
	if err := c.validate(); err != nil {
		return ReplayStatus{}, err
	}
	if _, err := ShowReplay(ctx, db, schema, id); err != nil {
		return ReplayStatus{}, err
	}
	if _, err := continueReplay(ctx, db, schema, c, &ReplayProgress{ID: id}); err != nil {
		return ReplayStatus{}, err
	}
	return ShowReplay(ctx, db, schema, id)
}

// StopReplay stops a replay until ResumeReplay, or Replay with its ID. What it has put into the outbox stays there.
func StopReplay(ctx context.Context, db pgtx.DB, schema string, id int64, by By) error {
	if err := by.Validate(); err != nil {
		return fmt.Errorf("stop replay: %w", err)
	}
	return administer(ctx, db, schema, "stop replay", func(ctx context.Context, tx pgx.Tx, schema string) error {
		changed, err := tx.Exec(ctx, query("replay_stop", schema), id, by.Actor)
		if err != nil {
			return err
		}
		if changed.RowsAffected() == 0 {
			return fmt.Errorf("%w: %d", ErrNoSuchReplay, id)
		}
		_, err = audit(ctx, tx, schema, by, "stop replay", 0, auditDetail{Replay: id})
		return err
	})
}

// ResumeReplay lets a replay that is not done go on where it was, at another rate; 0 is no limit. ContinueReplay does the work.
func ResumeReplay(ctx context.Context, db pgtx.DB, schema string, id int64, rate int, by By) error {
	return resumeReplay(ctx, db, schema, "resume replay", id, rate, by, true)
}

// ChangeRate gives a running replay another rate; 0 is no limit. The error is ErrNoSuchReplay if it does not run any more: it stays stopped.
func ChangeRate(ctx context.Context, db pgtx.DB, schema string, id int64, rate int, by By) error {
	return resumeReplay(ctx, db, schema, "change rate", id, rate, by, true)
}

// resumeReplay lets a replay go on, and records it where it was stopped, or must be one that is not done.
func resumeReplay(ctx context.Context, db pgtx.DB, schema, what string, id int64, rate int, by By, must bool) error {
	c := ReplayConfig{Resume: id, Rate: rate}
	if err := errors.Join(c.validate(), by.Validate()); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return administer(ctx, db, schema, what, func(ctx context.Context, tx pgx.Tx, schema string) error {
		var stopped bool
		err := tx.QueryRow(ctx, query("replay_resume", schema), id, rate, what == "change rate").Scan(&stopped)
		switch {
		case errors.Is(err, pgx.ErrNoRows) && must:
			return fmt.Errorf("%w: %d", ErrNoSuchReplay, id)
		case errors.Is(err, pgx.ErrNoRows):
			return nil // the next step says so
		case err != nil || !stopped && !must:
			return err
		}
		_, err = audit(ctx, tx, schema, by, what, 0, auditDetail{Replay: id})
		return err
	})
}

// stoppedBy is who has stopped a replay; "" for nobody.
func stoppedBy(ctx context.Context, db pgtx.DB, schema string, id int64) (who string, err error) {
	err = administer(ctx, db, schema, "replay events", func(ctx context.Context, tx pgx.Tx, schema string) error {
		return tx.QueryRow(ctx, query("replay_stopped", schema), id).Scan(&who)
	})
	return who, err
}

// ListReplays returns replays that are not done, and those that are among the last 1,000 actions, at most so many: those that run, then
// the last ones.
func ListReplays(ctx context.Context, db pgtx.DB, schema string, limit int) ([]ReplayStatus, error) {
	return replays(ctx, db, schema, nil, limit)
}

// ShowReplay returns how far a replay is.
func ShowReplay(ctx context.Context, db pgtx.DB, schema string, id int64) (ReplayStatus, error) {
	found, err := replays(ctx, db, schema, &id, 1)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%w: %d", ErrNoSuchReplay, id)
	}
	if err != nil {
		return ReplayStatus{}, err
	}
	return found[0], nil
}

func replays(ctx context.Context, db pgtx.DB, schema string, id *int64, limit int) (found []ReplayStatus, err error) {
	err = administer(ctx, db, schema, "list replays", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, query("replays", schema), id, limit)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r ReplayStatus, err error) {
			var since, until *time.Time
			err = row.Scan(&r.ID, &r.Actor, &r.Note, &r.Selection.Topic, &r.Selection.Key, &since, &until, &r.To, &r.Rate, &r.State, &r.StoppedBy,
				&r.Started, &r.Stepped, &r.At, &r.Events, &r.Selected.N, &r.Selected.AtLeast)
			if since != nil {
				r.Selection.Since = *since
			}
			if until != nil {
				r.Selection.Until = *until
			}
			return r, err
		})
		return err
	})
	return found, err
}
