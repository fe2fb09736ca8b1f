package outboxadmin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// ErrNotCounted is InspectBacklog's error when the server did not count in time, or ctx ended first. That says nothing about relays and broker:
// a transaction that is open for long, such as a backup, keeps dead rows, and they slow the count down.
var ErrNotCounted = errors.New("what waits in the outbox could not be counted in time: perhaps a transaction is open for long, " +
	"and dead rows are in the way (\"millrace doctor\" names it)")

const (
	// backlogLimit is how many events of a shard InspectBacklog counts, and backlogBeyond how many while a topic holds some up.
	backlogLimit, backlogBeyond = 50, 1000
	// backlogPatience is how long it may take the server.
	backlogPatience = time.Second
)

// InspectBacklog is a small Inspect for health checks and other frequent callers, with the privileges of a role that
// publishes. It counts up to 50 events of each shard, or up to 1,000 while a topic is paused or failing, and gives up after about a
// second with ErrNotCounted. It fills in At, Pending, Oldest, Shards and those Topics whose events wait; the shards name their
// relays by ID. It takes no locks.
func InspectBacklog(ctx context.Context, db pgtx.DB, schema string) (*Report, error) {
	patience := backlogPatience
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, max(time.Until(deadline)/2, time.Millisecond))
	}
	ms := patience.Milliseconds()
	var r *Report
	limit := int64(backlogLimit)
	err := administer(ctx, db, schema, "inspect backlog of outbox", func(ctx context.Context, tx pgx.Tx, schema string) error {
		_, err := tx.Exec(ctx, `select set_config('statement_timeout', $1::text, true), set_config('lock_timeout', $2::text, true)`,
			strconv.FormatInt(ms, 10), strconv.FormatInt(max(ms/2, 1), 10))
		if err != nil {
			return err
		}
		states, err := topicStates(ctx, tx, schema)
		if err != nil {
			return err
		}
		heldUp := heldUp(states)
		if len(heldUp) > 0 {
			limit = backlogBeyond
		}
		rows, err := tx.Query(ctx, query("inspect_backlog", schema), limit, heldUp)
		if err != nil {
			return err
		}
		r = &Report{}
		r.addStates(states)
		r.Shards, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s ShardReport, err error) {
			return s, row.Scan(&s.Shard, &s.Pending.N, &s.Oldest, &s.OldestMoving, &s.Relay, &s.Expires, &s.Held, &s.UncleanTakeovers, &s.Suspect, &s.Attempts, &r.At)
		})
		return err
	})
	if tookTooLong(err) || errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", ErrNotCounted, err)
	}
	if err != nil {
		return nil, err
	}
	for i := range r.Shards {
		r.add(&r.Shards[i], limit)
	}
	return r, nil
}

// add adds what a shard holds, counted up to limit.
func (r *Report) add(s *ShardReport, limit int64) {
	s.Pending.AtLeast = s.Pending.N == limit
	r.Pending.N += s.Pending.N
	r.Pending.AtLeast = r.Pending.AtLeast || s.Pending.AtLeast
	if s.Oldest != nil && (r.Oldest == nil || s.Oldest.Before(*r.Oldest)) {
		r.Oldest = s.Oldest
	}
}
