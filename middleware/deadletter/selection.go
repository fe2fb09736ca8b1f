package deadletter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
)

// allStates are the states of failed events.
var allStates = []string{"nacked", "retrying", "blocked", "dead"}

// Selection selects failed events. Zero fields select everything. Discard, Replay and Redirect act on the events that are selected when they
// begin.
type Selection struct {
	EventIDs []string  `json:"event_ids,omitempty"`
	Consumer string    `json:"consumer,omitempty"`
	Topic    string    `json:"topic,omitempty"`
	Key      string    `json:"key,omitempty"`
	Group    string    `json:"group,omitempty"`  // as in Event.Group
	Reason   string    `json:"reason,omitempty"` // class of the error, as in Event.Reason, such as "attempts", "permanent" or "panic"
	Since    time.Time `json:"since,omitzero"`   // latest failure at this time or later, by the server's clock
	Until    time.Time `json:"until,omitzero"`   // latest failure before this time
	States   []string  `json:"states,omitempty"` // "nacked", "retrying", "blocked", "dead". Default: see each function
}

func (s Selection) validate() error {
	var errs []error
	for _, state := range s.States {
		if !slices.Contains(allStates, state) {
			errs = append(errs, fmt.Errorf("state is %q: want one of %v", state, allStates))
		}
	}
	if !s.Since.IsZero() && !s.Until.IsZero() && !s.Since.Before(s.Until) {
		errs = append(errs, fmt.Errorf("Since is %s: want a time before Until, which is %s", s.Since.Format(time.RFC3339), s.Until.Format(time.RFC3339)))
	}
	return errors.Join(errs...)
}

// counted reports whether claim_failed_count has the number of selected events.
func (s Selection) counted() bool {
	return len(s.EventIDs) == 0 && s.Topic == "" && s.Key == "" && s.Reason == "" && s.Since.IsZero() && s.Until.IsZero()
}

// selected is a failed event, without its content.
type selected struct {
	id            int64
	event         string
	consumer      int16
	name, key     string
	state, group  string
	first, failed time.Time
	writer        uint32 // the transaction that wrote the row
}

// pageSize is how many events are read at once and changed in one transaction.
const pageSize = 1000

// page returns the next selected events with IDs above the first and up to the second bound, in the order of their first failures. With
// ids it returns only those.
func (s Selection) page(ctx context.Context, tx pgx.Tx, schema string, above, upTo int64, ids []int64, limit int) ([]selected, error) {
	if _, err := tx.Exec(ctx, query("plan", schema)); err != nil {
		return nil, err
	}
	var spelled []string
	for _, id := range s.EventIDs {
		spelled = append(spelled, inbox.Canonical(id))
	}
	var state *string // by the index, in the order of IDs
	var states []string
	if len(s.States) == 1 {
		state = &s.States[0]
	} else if len(s.States) > 1 {
		states = s.States
	}
	rows, err := tx.Query(ctx, query("select", schema), above, upTo, spelled, operator.Optional(s.Consumer), operator.Optional(s.Key),
		operator.Optional(s.Group), state, states, operator.Optional(s.Topic), operator.Optional(s.Reason), operator.OptionalTime(s.Since),
		operator.OptionalTime(s.Until), ids, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanSelected)
}

func scanSelected(row pgx.CollectableRow) (f selected, err error) {
	err = row.Scan(&f.id, &f.event, &f.consumer, &f.name, &f.key, &f.state, &f.group, &f.first, &f.failed, &f.writer)
	return f, err
}

// each calls f for every selected event, page by page, in the order of their first failures.
func (s Selection) each(ctx context.Context, tx pgx.Tx, schema string, upTo int64, f func(selected)) error {
	for above := int64(0); ; {
		page, err := s.page(ctx, tx, schema, above, upTo, nil, pageSize)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, one := range page {
			f(one)
		}
		above = page[len(page)-1].id
	}
}

// ids returns the IDs of the selected events, and counts by state the events that fit the selection but for their state.
func (s Selection) ids(ctx context.Context, tx pgx.Tx, schema string) (ids []int64, others map[string]int, err error) {
	if err := s.each(ctx, tx, schema, math.MaxInt64, func(f selected) { ids = append(ids, f.id) }); err != nil {
		return nil, nil, err
	}
	states := s.States
	s.States = slices.DeleteFunc(slices.Clone(allStates), func(state string) bool { return slices.Contains(states, state) })
	if others, err = s.count(ctx, tx, schema, math.MaxInt64); len(others) == 0 {
		others = nil
	}
	return ids, others, err
}

// count returns the number of selected events by state. It reads the events, unless only consumer, group and states are selected.
func (s Selection) count(ctx context.Context, tx pgx.Tx, schema string, upTo int64) (map[string]int, error) {
	counts := map[string]int{}
	if !s.counted() {
		return counts, s.each(ctx, tx, schema, upTo, func(f selected) { counts[f.state]++ })
	}
	rows, err := tx.Query(ctx, query("counts", schema), operator.Optional(s.Consumer), operator.Optional(s.Group))
	if err != nil {
		return nil, err
	}
	var state string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&state, &n}, func() error {
		if len(s.States) == 0 || slices.Contains(s.States, state) {
			counts[state] = n
		}
		return nil
	})
	return counts, err
}
