package deadletter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

const (
	// sampleSize is the number of events that SampleGroups groups.
	sampleSize = 2000
	// searched is how many events are read if no index fits the selection: by topic, reason, times or states of a key.
	searched = 10_000
)

// Sample is the newest events of a selection, in groups by their errors.
type Sample struct {
	Groups   []ErrorGroup // the most frequent first, at most 1,000
	Events   int          // number of grouped events
	Selected int          // events in the whole selection
	AtLeast  bool         // Selected is a lower bound: the count was not completed
	Digest   string       // identifies the grouped events: it differs if others are grouped, or if a dead or blocked one was changed
	// Searched is how many of the newest events were searched, if there are older ones and fewer were found than SampleGroups groups.
	// 0: every event was searched.
	Searched int
}

// SampleGroups groups the newest 2,000 selected events by their errors: dead letters, unless States says otherwise. It reads a bounded
// number of events, however many have failed. For a selection by Topic, Reason, Since or Until, by states of a Key, or by Consumer and Group,
// it searches the newest 10,000 events that fit the other fields, and the oldest of a Key. It counts the whole selection if only consumer,
// group and states are selected.
func SampleGroups(ctx context.Context, db pgtx.DB, schema string, s Selection) (sample Sample, err error) {
	if len(s.States) == 0 {
		s.States = []string{"dead"}
	}
	if err := s.validate(); err != nil {
		return sample, fmt.Errorf("sample error groups: %w", err)
	}
	err = administer(ctx, db, schema, "sample error groups", func(ctx context.Context, tx pgx.Tx, schema string) error {
		part, err := s.newest(ctx, tx, schema, math.MaxInt64, sampleSize)
		if err != nil {
			return err
		}
		var g grouping
		ids := sha256.New()
		for _, f := range part.events {
			g.add(f)
			if f.state != "dead" && f.state != "blocked" { // each attempt changes the others
				f.writer = 0
			}
			fmt.Fprintln(ids, f.id, f.writer)
		}
		sample.Digest = hex.EncodeToString(ids.Sum(nil))
		sample.Events, sample.Selected, sample.AtLeast, sample.Searched = len(part.events), len(part.events), part.older > 0, part.searched
		if sample.Groups, err = g.finish(ctx, tx, schema); err != nil || !sample.AtLeast || !s.counted() {
			return err
		}
		counts, err := s.count(ctx, tx, schema, math.MaxInt64)
		sample.Selected, sample.AtLeast = 0, false
		for _, n := range counts {
			sample.Selected += n
		}
		return err
	}, pgtx.Isolation(pgx.RepeatableRead)) // one snapshot
	return sample, err
}

// part is some of the selected events, the newest first.
type part struct {
	events   []selected
	older    int64 // the ID before which further events may be selected; 0: none is left
	searched int   // number of events searched, if that limit has ended the part
}

// newest returns the newest selected events before the ID, at most limit.
func (s Selection) newest(ctx context.Context, tx pgx.Tx, schema string, before int64, limit int) (p part, err error) {
	for _, setting := range []string{"plan", "indexed"} {
		if _, err := tx.Exec(ctx, query(setting, schema)); err != nil {
			return p, err
		}
	}
	if !s.Until.IsZero() {
		var until int64
		if err := tx.QueryRow(ctx, query("until", schema), s.Until).Scan(&until); err != nil {
			return p, err
		}
		before = min(before, until)
	}
	states, window := s.States, limit+1
	if len(states) == 0 {
		states = allStates
	}
	if s.Topic != "" || s.Reason != "" || s.Key != "" || s.Group != "" && s.Consumer != "" || !s.Since.IsZero() || !s.Until.IsZero() {
		window = max(window, searched)
	}
	var name string
	var args []any
	switch {
	case len(s.EventIDs) > 0:
		var spelled []string
		for _, id := range s.EventIDs {
			spelled = append(spelled, inbox.Canonical(id))
		}
		name, args = "window_events", []any{before, spelled, window}
	case s.Key != "":
		name, args = "window_key", []any{before, s.Key, operator.Optional(s.Consumer), window}
	case s.Group != "":
		name, args = "window_group", []any{before, states, s.Group, window}
	default:
		name, args = "window", []any{before, states, operator.Optional(s.Consumer), window}
	}
	rows, err := tx.Query(ctx, query(name, schema), args...)
	if err != nil {
		return p, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return p, err
	}
	rows, err = tx.Query(ctx, query("recent", schema), ids, limit+1, states, operator.Optional(s.Consumer), operator.Optional(s.Key), operator.Optional(s.Topic),
		operator.Optional(s.Reason), operator.OptionalTime(s.Since), operator.OptionalTime(s.Until), operator.Optional(s.Group))
	if err != nil {
		return p, err
	}
	if p.events, err = pgx.CollectRows(rows, scanSelected); err != nil {
		return p, err
	}
	if len(ids) >= window { // the oldest events of a key follow these
		slices.Sort(ids)
		p.older, p.searched = ids[len(ids)-window], window
	}
	if len(p.events) > limit {
		p.events = p.events[:limit]
		p.older, p.searched = max(p.older, p.events[limit-1].id), 0
	}
	return p, nil
}

// Counts returns the number of failed events by consumer and state. It reads sums that are kept, and no events.
func Counts(ctx context.Context, db pgtx.DB, schema string) (map[string]map[string]int, error) {
	counts := map[string]map[string]int{}
	err := administer(ctx, db, schema, "count failed events", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, query("counts_by_consumer", schema))
		if err != nil {
			return err
		}
		var consumer, state string
		var n int
		_, err = pgx.ForEachRow(rows, []any{&consumer, &state, &n}, func() error {
			if counts[consumer] == nil {
				counts[consumer] = map[string]int{}
			}
			counts[consumer][state] = n
			return nil
		})
		return err
	})
	return counts, err
}
