package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// Pace is the speed of a replay, and the share of failures at which it stops.
type Pace struct {
	Rate int `json:"rate"` // events per second. 0: as fast as consumers settle them

	// MaxFailed is the largest share, from 0 to 1, of tried events that may fail again; above it the replay stops. Fewer than 20 tried
	// events count as 20. With 1 the replay never stops by itself. With less it first replays 20 events, and from then on waits until
	// half of the replayed events were tried, and fewer than 10,000 were not.
	MaxFailed float64 `json:"max_failed"`
}

func (p Pace) validate() error {
	var errs []error
	if p.Rate < 0 {
		errs = append(errs, fmt.Errorf("Pace.Rate is %d: want 0 or more events a second", p.Rate))
	}
	if !(p.MaxFailed >= 0 && p.MaxFailed <= 1) {
		errs = append(errs, fmt.Errorf("Pace.MaxFailed is %v: want a share from 0 to 1", p.MaxFailed))
	}
	return errors.Join(errs...)
}

// States of a replay with a pace.
const (
	ReplayRunning = "running" // ContinueReplay continues it, in any process
	ReplayStopped = "stopped" // by StopReplay, or because too many events failed again; ResumeReplay continues it
	ReplayDone    = "done"    // every selected event was replayed
)

// ReplayStatus is the progress of a replay with a pace. Times are by the server's clock.
type ReplayStatus struct {
	ID        int64     `json:"id"`
	Actor     string    `json:"actor"` // who began the replay
	Note      string    `json:"note,omitempty"`
	Selection Selection `json:"selection"`
	Pace      Pace      `json:"pace"`
	State     string    `json:"state"`
	Reason    string    `json:"reason,omitempty"` // why the replay was stopped

	Started time.Time  `json:"started"`
	Stepped time.Time  `json:"stepped"` // when it last replayed events; if that is long ago, no process continues the running replay
	Ended   *time.Time `json:"ended,omitempty"`

	Selected int `json:"selected"`            // number of selected events at its begin
	Replayed int `json:"replayed"`            // of Selected
	InFlight int `json:"in_flight,omitempty"` // of Selected: left unchanged, because they were being handled or changed at the time

	// The replayed events by their present state. The sum is Replayed. If AtLeast is true, not all were counted: Untried, Retrying and
	// Dead are lower bounds, and Handled is an upper bound.
	AtLeast    bool `json:"at_least,omitempty"`
	Handled    int  `json:"handled"`
	Untried    int  `json:"untried"`              // not tried yet
	Retrying   int  `json:"retrying"`             // failed again, with attempts left
	Dead       int  `json:"dead"`                 // dead letters again
	Superseded int  `json:"superseded,omitempty"` // replayed again or discarded by an operator before they were handled
}

// ErrNoSuchReplay means that no replay has the ID, or that the replay is done.
var ErrNoSuchReplay = errors.New("no such replay, or it is done")

// BeginReplay records a replay with a pace and returns its ID. ContinueReplay replays the events, in the same way as Replay. The
// replay outlives its process: each step commits its progress to the database together with the replayed events. The error is
// ErrNoSuchEvent if nothing is selected.
func BeginReplay(ctx context.Context, db pgtx.DB, schema string, s Selection, pace Pace, by By) (id int64, err error) {
	a := replaying(nil)
	if err := a.complete(&s, by); err != nil {
		return 0, err
	}
	if err := pace.validate(); err != nil {
		return 0, fmt.Errorf("replay failed events: %w", err)
	}
	selection, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	err = a.administer(ctx, db, schema, func(ctx context.Context, tx pgx.Tx, schema string) error {
		var upTo int64
		if err := tx.QueryRow(ctx, query("newest", schema), 0).Scan(&upTo, nil); err != nil {
			return err
		}
		counts, err := s.count(ctx, tx, schema, upTo)
		if err != nil {
			return err
		}
		selected := 0
		for _, n := range counts {
			selected += n
		}
		if selected == 0 {
			return ErrNoSuchEvent
		}
		return tx.QueryRow(ctx, query("replay_begin", schema), by.Actor, by.Note, selection, pace.Rate, pace.MaxFailed, upTo, selected).Scan(&id)
	})
	return id, err
}

// ContinueReplay replays events until the replay or ctx ends, and returns the progress. Several processes may continue one
// replay: together they keep its pace. progress, which may be nil, is called about once a second.
func ContinueReplay(ctx context.Context, db pgtx.DB, schema string, id int64, progress func(ReplayStatus)) (status ReplayStatus, err error) {
	told := time.Time{}
	for {
		running, wait, err := stepReplay(ctx, db, schema, id)
		if err != nil {
			return status, err
		}
		if !running || progress != nil && time.Since(told) >= time.Second {
			if status, err = ShowReplay(ctx, db, schema, id); err != nil {
				return status, err
			}
			told = time.Now()
			if progress != nil {
				progress(status)
			}
		}
		if !running {
			return status, nil
		}
		select {
		case <-ctx.Done():
			return status, fmt.Errorf("continue replay %d: %w", id, ctx.Err())
		case <-time.After(wait):
		}
	}
}

// Steps of a replay.
const (
	maxUntried   = 10_000                 // number of untried events at which a replay that may stop by itself waits, and beyond which they are not counted
	firstStep    = 20                     // number of events in the first step of a replay that may stop by itself
	stepsASecond = 5                      // of a replay with a rate
	untriedPause = 200 * time.Millisecond // wait before it checks again whether consumers have tried the replayed events
	longestPause = time.Second            // longest wait before it checks again whether the replay was stopped
)

// stepReplay replays some events, and returns the wait before the next step. running is false if the replay has ended.
func stepReplay(ctx context.Context, db pgtx.DB, schema string, id int64) (running bool, wait time.Duration, err error) {
	a := replaying(&id)
	err = a.administer(ctx, db, schema, func(ctx context.Context, tx pgx.Tx, schema string) error {
		running, wait = false, 0
		var (
			by                        By
			selection                 []byte
			s                         Selection
			pace                      Pace
			above, upTo               int64
			due                       float64
			replayed, untried, failed int
		)
		err := tx.QueryRow(ctx, query("replay_lock", schema), id, maxUntried).Scan(&by.Actor, &by.Note, &selection, &pace.Rate, &pace.MaxFailed,
			&above, &upTo, &due, &untried, &failed, &replayed)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // it has ended
		}
		if err == nil {
			err = json.Unmarshal(selection, &s)
		}
		if err != nil {
			return err
		}
		limit, guarded := pageSize, pace.MaxFailed < 1
		if pace.Rate > 0 {
			limit = min(limit, (pace.Rate+stepsASecond-1)/stepsASecond)
		}
		if _, err := tx.Exec(ctx, query("replay_handled", schema), id); err != nil {
			return err
		}
		if guarded {
			tried := replayed - untried
			counts := max(tried, firstStep)
			if float64(failed) > pace.MaxFailed*float64(counts) {
				reason := fmt.Sprintf("of %d events that were tried %d have failed again", tried, failed)
				_, err := tx.Exec(ctx, query("replay_stop", schema), id, reason)
				return err
			}
			limit = min(limit, counts-untried, maxUntried-untried)
		}
		running = true
		switch {
		case due > 0:
			wait = min(longestPause, time.Duration(due*float64(time.Second)))
			return nil
		case limit <= 0:
			wait = untriedPause
			return nil
		}
		var r Result
		last, err := a.step(ctx, tx, schema, s, above, upTo, limit, by, &r)
		if err != nil {
			return err
		}
		if pace.Rate > 0 {
			wait = time.Duration(r.Done) * time.Second / time.Duration(pace.Rate)
		}
		running = last < upTo
		_, err = tx.Exec(ctx, query("replay_step", schema), id, last, r.Done, r.InFlight, wait.Seconds())
		return err
	})
	return running, wait, err
}

// StopReplay stops a replay, which ResumeReplay can continue. Events that it has replayed stay replayed.
func StopReplay(ctx context.Context, db pgtx.DB, schema string, id int64, by By) error {
	return changeReplay(ctx, db, schema, "stop replay", id, by, "replay_stop", "stopped by "+by.Actor)
}

// ResumeReplay continues a stopped replay where it was, with another pace if pace is not nil. ContinueReplay replays the events.
func ResumeReplay(ctx context.Context, db pgtx.DB, schema string, id int64, pace *Pace, by By) error {
	return goOn(ctx, db, schema, "resume replay", id, pace, by, ReplayStopped, ReplayRunning)
}

// ChangePace gives a running replay another pace. The error is ErrNoSuchReplay if it does not run any more: it stays stopped.
func ChangePace(ctx context.Context, db pgtx.DB, schema string, id int64, pace Pace, by By) error {
	return goOn(ctx, db, schema, "change pace", id, &pace, by, ReplayRunning)
}

// goOn lets a replay in one of the states go on.
func goOn(ctx context.Context, db pgtx.DB, schema, what string, id int64, pace *Pace, by By, states ...string) error {
	var rate *int
	var maxFailed *float64
	if pace != nil {
		if err := pace.validate(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		rate, maxFailed = &pace.Rate, &pace.MaxFailed
	}
	return changeReplay(ctx, db, schema, what, id, by, "replay_resume", rate, maxFailed, states)
}

func changeReplay(ctx context.Context, db pgtx.DB, schema, what string, id int64, by By, statement string, args ...any) error {
	if err := by.Validate(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return administer(ctx, db, schema, what, func(ctx context.Context, tx pgx.Tx, schema string) error {
		changed, err := tx.Exec(ctx, query(statement, schema), append([]any{id}, args...)...)
		if err != nil {
			return err
		}
		if changed.RowsAffected() == 0 {
			return fmt.Errorf("%w: %d", ErrNoSuchReplay, id)
		}
		_, err = tx.Exec(ctx, query("replay_audit", schema), id, by.Actor, what, by.Note)
		return err
	})
}

// How many events of a replay are counted, so that a replay of many more cannot hold up who looks.
const (
	countedInList = 2000
	countedInOne  = 20_000
)

// ListReplays returns replays with a pace, at most limit: those that run, then the latest. It counts about 2,000 events of each.
func ListReplays(ctx context.Context, db pgtx.DB, schema string, limit int) ([]ReplayStatus, error) {
	return replays(ctx, db, schema, nil, limit, countedInList)
}

// ShowReplay returns the progress of a replay. It counts about 20,000 events.
func ShowReplay(ctx context.Context, db pgtx.DB, schema string, id int64) (ReplayStatus, error) {
	found, err := replays(ctx, db, schema, &id, 1, countedInOne)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%w: %d", ErrNoSuchReplay, id)
	}
	if err != nil {
		return ReplayStatus{}, err
	}
	return found[0], nil
}

func replays(ctx context.Context, db pgtx.DB, schema string, id *int64, limit, counted int) (found []ReplayStatus, err error) {
	err = administer(ctx, db, schema, "list replays", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, query("replays", schema), id, limit, counted)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r ReplayStatus, err error) {
			var selection []byte
			err = row.Scan(&r.ID, &r.Actor, &r.Note, &selection, &r.Pace.Rate, &r.Pace.MaxFailed, &r.State, &r.Reason, &r.Started, &r.Stepped,
				&r.Ended, &r.Selected, &r.Replayed, &r.InFlight, &r.Untried, &r.Retrying, &r.Dead, &r.AtLeast, &r.Superseded)
			if err == nil {
				err = json.Unmarshal(selection, &r.Selection)
			}
			r.Handled = r.Replayed - r.Untried - r.Retrying - r.Dead - r.Superseded
			return r, err
		})
		return err
	})
	return found, err
}
