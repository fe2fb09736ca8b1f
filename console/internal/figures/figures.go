// Package figures reads the figures of a database that all pages show.
package figures

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/console/internal/cache"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/internal/reach"
	"github.com/millrace-go/millrace/internal/tables"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

const (
	// Fresh is the maximum age of figures. Processes write the consumers' counts only every 10 s, so these may be older.
	Fresh      = time.Second
	freshFlows = 5 * time.Second

	// maxCounted bounds how many effects are counted, and maxReplays how many replays of each kind are listed.
	maxCounted = 1000
	maxReplays = 10
)

// Own lists the keys of the cache that have a slot of their own, because every page needs them. Parts of the snapshot are read with it.
var Own = []string{"snapshot", "doctor"}

// Snapshot has the figures of a database that all pages show. Times are the server's. It is shared, so it must not be changed.
type Snapshot struct {
	Now       time.Time // zero: the database has never answered
	There     map[string]bool
	Outbox    *outboxadmin.Report
	Topics    []Topic // trouble first
	Others    Course  // of topics that relays do not count one by one
	Relays    []Relay
	Published time.Time // what relays published before is not known
	Dead      outboxadmin.Count
	Consumers []Consumer                 // those with trouble first
	Since     time.Time                  // start of the consumers' counts
	Partly    bool                       // only some of the full keys were counted
	Replays   []deadletter.ReplayStatus  // the latest ones
	Archived  []outboxadmin.ReplayStatus // of archived events
	Doubts    []effect.Entry
	InDoubt   outboxadmin.Count
	Errors    map[string]string // "outbox", "consumers" or "effects": why it has no figures
	Error     string            // why the figures are old; "" if they are not
	Late      bool              // the database did not answer in time
	Version   string            // changes with everything but the time
}

// Source is a database to read from.
type Source struct {
	Pool   *pgxpool.Pool
	Schema string
	Cache  *cache.Cache
	Reach  reach.Reach
}

// Snapshot returns the figures. They are old if the database does not answer.
func (db Source) Snapshot(ctx context.Context) Snapshot {
	s, _, err := cache.Get(ctx, db.Cache, "snapshot", Fresh, db.read)
	if err != nil {
		s.Error, s.Late = format.Error(err), errors.Is(err, context.DeadlineExceeded)
	}
	return s
}

func (db Source) read(ctx context.Context) (Snapshot, error) {
	s, err := db.figures(ctx)
	s.Version = s.digest()
	return s, err
}

// figures fails only if the database does not answer. What fails for another reason, such as a missing privilege, concerns one part.
func (db Source) figures(ctx context.Context) (s Snapshot, err error) {
	if err := db.Pool.QueryRow(ctx, `select now()`).Scan(&s.Now); err != nil {
		return s, err
	}
	s.There, err = tables.Installed(ctx, db.Pool, db.Schema)
	for _, part := range []struct {
		component, name string
		look            func(context.Context, *Snapshot) error
	}{{"outbox", "outbox", db.lookAtOutbox}, {"claim", "consumers", db.lookAtConsumers}, {"effect", "effects", db.lookAtEffects}} {
		found, wrong := s, err
		if err == nil && s.There[part.component] {
			wrong = part.look(ctx, &found)
		}
		if wrong == nil {
			s = found
			continue
		}
		if s.Errors == nil {
			s.Errors = map[string]string{}
		}
		s.Errors[part.name] = format.Error(wrong)
	}
	if s.Late = ctx.Err() != nil; s.Late { // the last figures are better, if there are some
		if _, at := cache.Last[Snapshot](db.Cache, "snapshot"); !at.IsZero() {
			return s, ctx.Err()
		}
	}
	return s, nil
}

func (db Source) lookAtOutbox(ctx context.Context, s *Snapshot) (err error) {
	if s.Outbox, err = outboxadmin.Inspect(ctx, db.Pool, db.Schema); err != nil {
		return err
	}
	if err = db.lookAtFlows(ctx, s); err != nil {
		return err
	}
	s.Archived, err = outboxadmin.ListReplays(ctx, db.Pool, db.Schema, maxReplays)
	return err
}

func (db Source) lookAtEffects(ctx context.Context, s *Snapshot) (err error) {
	s.Doubts, err = Effects(ctx, db, effect.Listing{Limit: maxCounted})
	s.InDoubt = outboxadmin.Count{N: int64(len(s.Doubts)), AtLeast: len(s.Doubts) == maxCounted}
	return err
}

// Effects returns effects without their responses, which may be confidential and large.
func Effects(ctx context.Context, db Source, l effect.Listing) ([]effect.Entry, error) {
	found, err := effect.List(ctx, db.Pool, db.Schema, l)
	for i := range found {
		found[i].Response = nil
	}
	return found, err
}

func (db Source) lookAtConsumers(ctx context.Context, s *Snapshot) (err error) {
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
	flows, _, err := cache.Get(ctx, db.Cache, "flows", freshFlows, func(ctx context.Context) (claim.Flows, error) {
		return claim.InspectFlows(ctx, db.Pool, db.Schema)
	})
	if err != nil {
		return err
	}
	s.Since, s.Partly = flows.Since, flows.Partly
	s.Consumers = consumers(kept.Consumers, failed, pauses, flows)
	return nil
}

// Fingerprint returns a text that changes when the figures do, or when they can no longer be read.
func (s Snapshot) Fingerprint() string {
	if s.Error != "" {
		return s.Version + "-old"
	}
	return s.Version
}

// digest returns a hash of the snapshot without its time.
func (s Snapshot) digest() string {
	s.Now, s.Since, s.Published = time.Time{}, time.Time{}, time.Time{}
	if s.Outbox != nil {
		report := *s.Outbox
		report.At = time.Time{}
		s.Outbox = &report
	}
	b, err := json.Marshal(s)
	if err != nil {
		return "" // a snapshot can always be written
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
