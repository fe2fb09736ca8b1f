package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/millrace/console/internal/cache"
	"github.com/millrace-go/millrace/internal/doctor"
	"github.com/millrace-go/millrace/internal/tables"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

const (
	// fresh is how old figures may be, and freshFindings how old what doctor found.
	fresh         = time.Second
	freshFindings = 15 * time.Second

	// maxCounted is how many effects are counted, and maxConsumers of how many consumers the dead letters.
	maxCounted   = 1000
	maxConsumers = 50
)

// snapshot is what all pages show of a database. Times are the server's.
type snapshot struct {
	Now       time.Time // zero: the database has never answered
	There     map[string]bool
	Outbox    *outboxadmin.Report
	Dead      outboxadmin.Count
	Consumers []consumer
	Replays   []deadletter.ReplayStatus  // the last ones
	Archived  []outboxadmin.ReplayStatus // of archived events
	Doubts    []effect.Entry
	InDoubt   outboxadmin.Count
	Error     string // why these figures are old
	late      bool   // the database did not answer in time
	version   string
}

// consumer is one that has claimed events.
type consumer struct {
	Name   string
	Dead   int
	Pauses []claim.Pause
}

// snapshot returns the figures, which may be old when the database does not answer.
func (q *request) snapshot() snapshot {
	s, _, err := cache.Get(q.ctx(), q.db.cache, "snapshot", fresh, q.db.look)
	if err != nil {
		s.Error, s.late = said(err), errors.Is(err, context.DeadlineExceeded)
	}
	return s
}

// look reads a snapshot.
func (db *database) look(ctx context.Context) (snapshot, error) {
	s, err := db.figures(ctx)
	s.version = s.digest()
	return s, err
}

func (db *database) figures(ctx context.Context) (s snapshot, err error) {
	if err := db.Pool.QueryRow(ctx, `select now()`).Scan(&s.Now); err != nil {
		return s, err
	}
	if s.There, err = tables.Installed(ctx, db.Pool, db.Schema); err != nil {
		return s, err
	}
	if s.There["outbox"] {
		if s.Outbox, err = outboxadmin.Inspect(ctx, db.Pool, db.Schema); err != nil {
			return s, err
		}
		if s.Archived, err = outboxadmin.ListReplays(ctx, db.Pool, db.Schema, maxReplays); err != nil {
			return s, err
		}
	}
	if s.There["claim"] {
		if err := db.lookAtConsumers(ctx, &s); err != nil {
			return s, err
		}
	}
	if s.There["effect"] {
		s.Doubts, err = effect.List(ctx, db.Pool, db.Schema, effect.Listing{Limit: maxCounted})
		s.InDoubt = outboxadmin.Count{N: int64(len(s.Doubts)), AtLeast: len(s.Doubts) == maxCounted}
	}
	return s, err
}

func (db *database) lookAtConsumers(ctx context.Context, s *snapshot) (err error) {
	failed, err := deadletter.Counts(ctx, db.Pool, db.Schema)
	if err != nil {
		return err
	}
	for _, states := range failed {
		s.Dead.N += int64(states["dead"])
	}
	if s.Replays, err = deadletter.ListReplays(ctx, db.Pool, db.Schema, maxReplays); err != nil {
		return err
	}
	pauses, err := claim.Pauses(ctx, db.Pool, db.Schema)
	if err != nil {
		return err
	}
	kept, err := claim.InspectKept(ctx, db.Pool, db.Schema)
	if err != nil {
		return err
	}
	for _, k := range kept.Consumers[:min(len(kept.Consumers), maxConsumers)] {
		c := consumer{Name: k.Name, Dead: failed[k.Name]["dead"]}
		for _, p := range pauses {
			if p.Consumer == k.Name {
				c.Pauses = append(c.Pauses, p)
			}
		}
		s.Consumers = append(s.Consumers, c)
	}
	slices.SortStableFunc(s.Consumers, func(a, b consumer) int { // trouble first
		return cmp.Or(cmp.Compare(b.Dead, a.Dead), cmp.Compare(len(b.Pauses), len(a.Pauses)), cmp.Compare(a.Name, b.Name))
	})
	return nil
}

// findings are doctor's, and when it looked. A database that has just been late would be late again, so they are the last ones. After
// another error doctor looks: it knows what to do about tables of another version.
func (q *request) findings(s snapshot) ([]doctor.Finding, time.Time, error) {
	if s.late {
		found, at := cache.Last[[]doctor.Finding](q.db.cache, "doctor")
		return found, at, context.DeadlineExceeded
	}
	return cache.Get(q.ctx(), q.db.cache, "doctor", freshFindings, func(ctx context.Context) ([]doctor.Finding, error) {
		found, err := doctor.Examine(ctx, q.db.Pool, doctor.Config{
			Schema: q.db.Schema, Reach: q.db.reach,
			Limits: doctor.Limits{Lag: time.Minute, Transaction: 15 * time.Minute, Retention: claim.DefaultRetention, Horizon: claim.DefaultRedeliveryHorizon},
		})
		if err != nil {
			return nil, fmt.Errorf("doctor: %w", err)
		}
		return found, nil
	})
}
