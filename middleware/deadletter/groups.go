package deadletter

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/pgtx"
)

// ErrorGroup is a group of events that failed with similar errors.
type ErrorGroup struct {
	Group     string    `json:"group"`
	Text      string    `json:"text"` // the part that their errors have in common
	Events    int       `json:"events"`
	Consumers []string  `json:"consumers"`
	First     time.Time `json:"first"` // first failure of the event that failed first
	Last      time.Time `json:"last"`  // latest failure in the group
}

// MaxGroups is how many groups ListGroups returns.
const MaxGroups = 1000

// ListGroups groups the selected events by their errors, and returns up to MaxGroups groups, the largest first. It groups dead letters, unless
// States says otherwise. It is fast for any number of events if only consumer, group and states are selected; otherwise it reads every
// selected event.
func ListGroups(ctx context.Context, db pgtx.DB, schema string, s Selection) (groups []ErrorGroup, err error) {
	if len(s.States) == 0 {
		s.States = []string{"dead"}
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("list error groups: %w", err)
	}
	err = administer(ctx, db, schema, "list error groups", func(ctx context.Context, tx pgx.Tx, schema string) error {
		if !s.counted() {
			groups, err = s.group(ctx, tx, schema)
			return err
		}
		rows, err := tx.Query(ctx, query("groups", schema), operator.Optional(s.Consumer), operator.Optional(s.Group), s.States, MaxGroups)
		if err != nil {
			return err
		}
		groups, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ErrorGroup])
		return err
	}, pgtx.Isolation(pgx.RepeatableRead)) // one snapshot
	return groups, err
}

// group groups selected events that claim_failed_count cannot count.
func (s Selection) group(ctx context.Context, tx pgx.Tx, schema string) ([]ErrorGroup, error) {
	var g grouping
	if err := s.each(ctx, tx, schema, math.MaxInt64, g.add); err != nil {
		return nil, err
	}
	return g.finish(ctx, tx, schema)
}

// grouping makes groups of events.
type grouping struct {
	at     map[string]int // group -> its index in groups
	groups []ErrorGroup
	some   []int64 // IDs of one event of each group
}

func (all *grouping) add(f selected) {
	i, known := all.at[f.group]
	if !known {
		if all.at == nil {
			all.at = map[string]int{}
		}
		i = len(all.groups)
		all.at[f.group] = i
		all.groups, all.some = append(all.groups, ErrorGroup{Group: f.group, First: f.first, Last: f.failed}), append(all.some, f.id)
	}
	g := &all.groups[i]
	g.Events++
	if !slices.Contains(g.Consumers, f.name) {
		g.Consumers = append(g.Consumers, f.name)
	}
	if f.first.Before(g.First) {
		g.First = f.first
	}
	if f.failed.After(g.Last) {
		g.Last = f.failed
	}
}

// finish returns the groups, the largest first, with the text that the errors of each have in common.
func (all *grouping) finish(ctx context.Context, tx pgx.Tx, schema string) ([]ErrorGroup, error) {
	rows, err := tx.Query(ctx, query("texts", schema), all.some)
	if err != nil {
		return nil, err
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for i, text := range texts {
		all.groups[i].Text = text
	}
	slices.SortStableFunc(all.groups, func(a, b ErrorGroup) int { return b.Events - a.Events })
	return all.groups[:min(len(all.groups), MaxGroups)], err
}
