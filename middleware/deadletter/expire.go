package deadletter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// Expire discards, as Discard does, dead letters whose last failure is longer ago than keep[consumer]; the consumer is
// "service/name". An operator's action on an event restarts its time. Events that a running replay has not reached yet, and events
// that are being changed now, are left for the next call. Expire commits after each 1,000 events. It returns the number of discarded
// events by consumer, also if it ends early.
func Expire(ctx context.Context, db pgtx.DB, schema string, keep map[string]time.Duration, by By) (expired map[string]int, err error) {
	expired = map[string]int{}
	if err := by.Validate(); err != nil {
		return expired, fmt.Errorf("expire dead letters: %w", err)
	}
	names := slices.Sorted(maps.Keys(keep))
	seconds := make([]float64, len(names))
	for i, name := range names {
		if keep[name] <= 0 {
			return expired, fmt.Errorf("expire dead letters: those of consumer %q are kept for %v: want more than 0", name, keep[name])
		}
		seconds[i] = keep[name].Seconds()
	}
	if len(names) == 0 {
		return expired, nil
	}
	due := func(ctx context.Context, tx pgx.Tx, schema string, behind selected, of []int64) ([]selected, error) {
		rows, err := tx.Query(ctx, query("expire", schema), names, seconds, behind.failed, behind.id, of)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, scanSelected)
	}
	var page []selected
	var behind selected
	a := discarding("expire")
	// An operator's action that was committed before the locks were taken counts too.
	a.still = func(ctx context.Context, tx pgx.Tx, schema string, locked []int64) (ids []int64, err error) {
		if len(locked) == 0 {
			return nil, nil
		}
		left, err := due(ctx, tx, schema, behind, locked)
		for _, f := range left {
			ids = append(ids, f.id)
		}
		return ids, err
	}
	for {
		var done []int64
		err := a.administer(ctx, db, schema, func(ctx context.Context, tx pgx.Tx, schema string) (err error) {
			if _, err := tx.Exec(ctx, query("plan", schema)); err != nil {
				return err
			}
			if page, err = due(ctx, tx, schema, behind, nil); err != nil {
				return err
			}
			if len(page) == 0 {
				_, err := tx.Exec(ctx, query("fold", schema))
				return err
			}
			done, err = a.act(ctx, tx, schema, page, a.may[:1], by, &Result{})
			return err
		})
		if err != nil || len(page) == 0 {
			return expired, err
		}
		for _, f := range page {
			if slices.Contains(done, f.id) {
				expired[f.name]++
			}
		}
		behind = page[len(page)-1]
	}
}
