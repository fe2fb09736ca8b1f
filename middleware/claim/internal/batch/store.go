package batch

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

// groupStore claims the events of groups in PostgreSQL.
type groupStore struct {
	store   *store.Postgres
	timeout func(consumer string) time.Duration // of each handler
	async   bool                                // the caller makes commits durable

	lock, look, record, commit, functionsOf, stateOf string

	functions functions
}

func newGroupStore(cfg Config) *groupStore {
	query := func(name string) string { return store.Query(name, cfg.Store.Schema) }
	return &groupStore{
		store: cfg.Store, timeout: cfg.Timeout, async: cfg.Async,
		lock: query("group_lock"), look: query("group_look"), record: query("group_record"), commit: query("deferred_commit"),
		functionsOf: query("group_functions"), stateOf: query("group_state"),
	}
}

// do claims the members' events and runs the handlers of the claimed ones, in one transaction.
func (s *groupStore) do(members []*member) (claimed bool, err error) {
	// Each handler has its own timeout. This one bounds what the group does before the first handler and after the last.
	timeout := s.timeout(members[0].key.Consumer)
	ctx, cancel := context.WithCancelCause(members[0].ctx)
	defer cancel(nil)
	watch := time.AfterFunc(timeout, func() { cancel(context.DeadlineExceeded) })
	defer watch.Stop()

	consumer, err := s.store.Consumer(ctx, members[0].key.Consumer)
	if err != nil {
		return false, err
	}
	err = pgtx.Run(ctx, s.store.Pool, func(ctx context.Context, tx pgx.Tx) error {
		check, before, err := s.claim(ctx, tx, consumer, members)
		if err != nil {
			return err
		}
		claimed = true
		pgunit.Watch(ctx)
		watch.Stop()
		heard := time.Now() // when the server last got a statement from us, at the latest
		for _, m := range members {
			if !m.mayRun() {
				continue
			}
			if time.Since(heard) > timeout { // otherwise the server might end the transaction as idle
				watch.Reset(timeout)
				if _, err := tx.Exec(ctx, "select 1"); err != nil {
					return err
				}
				watch.Stop()
				heard = time.Now()
			}
			record := m.key.Record()
			if lost := m.run(tx, s.store.Pool, timeout, func(ctx context.Context) error {
				if err := s.leaves(ctx, before); err != nil {
					return err
				}
				return s.complete(ctx, consumer, record, check)
			}); lost != nil {
				return lost
			}
		}
		watch.Reset(timeout)
		if s.async {
			return pgtx.Queue(ctx, s.commit)
		}
		return nil
	}, pgtx.Isolation(pgx.ReadCommitted))
	return claimed, err
}

// claim takes the locks and looks for records in one round trip. Events that need more checks are claimed alone. It returns the
// statements that check the deferrable constraints, if there are any, and what functions may have left so far.
func (s *groupStore) claim(ctx context.Context, tx pgx.Tx, consumer int16, members []*member) (check, before []string, err error) {
	var claims []*member
	var keys []int64
	var records []pgtype.UUID
	var orders []string
	var minted []*time.Time
	for _, m := range members {
		if m.twin == nil {
			claims, keys = append(claims, m), append(keys, m.key.Lock(s.store.Schema))
			record := m.key.Record()
			records, orders = append(records, record), append(orders, m.key.Order)
			var at *time.Time
			if t, ok := inbox.Time(record); ok {
				at = &t
			}
			minted = append(minted, at)
		}
	}
	var (
		locked, completed, special []bool
		known                      bool
		deferred                   *string
	)
	idle := strconv.FormatInt((2*s.timeout(members[0].key.Consumer) + store.IdleSlack).Milliseconds(), 10) // see heard in do
	b := &pgx.Batch{}
	b.Queue(s.lock, keys, idle).
		QueryRow(func(row pgx.Row) error { return row.Scan(&locked, nil, nil, nil, nil) })
	b.Queue(s.lookFor(records), records, consumer, members[0].key.Consumer, orders, minted).
		QueryRow(func(row pgx.Row) error { return row.Scan(&completed, &special, &known, &deferred, nil) })
	settings, tables, stale := s.functions.known()
	switch {
	case stale:
		b.Queue(s.functionsOf).QueryRow(s.functions.learn)
	case len(settings) > 0 || tables:
		b.Queue(s.stateOf, settings, tables).QueryRow(func(row pgx.Row) error { return row.Scan(&before) })
	}
	switch err := tx.SendBatch(ctx, b).Close(); {
	case err != nil:
		return nil, nil, s.store.Hint(err)
	case !known:
		return nil, nil, store.ErrStale
	}
	if stale {
		if before, err = s.state(ctx, tx); err != nil {
			return nil, nil, err
		}
	}
	for i, m := range claims {
		switch {
		case !locked[i]:
			m.state, m.result.Err = memberRefused, store.ErrContended
		case completed[i]:
			m.state, m.result.Err = memberRefused, store.ErrCompleted
		case special[i]:
			m.state = memberAgain
		}
	}
	if deferred != nil {
		check = append(check, "set constraints all immediate")
		if *deferred != "" {
			check = append(check, *deferred)
		}
	}
	return check, before, nil
}

// lookFor returns the statement that looks for these records, in their days.
func (s *groupStore) lookFor(records []pgtype.UUID) string {
	const day = 24 * 60 * 60 * 1000
	var first, end int64
	var hashed bool
	for _, r := range records {
		minted, known := inbox.Time(r)
		if !known {
			hashed = true
			continue
		}
		begins := minted.UnixMilli() / day * day
		if end == 0 || begins < first {
			first = begins
		}
		end = max(end, begins+day)
	}
	var places []string
	if end > 0 {
		places = append(places, fmt.Sprintf("p.event_id >= '%s' and p.event_id < '%s'", leastOf(first), leastOf(end)))
	}
	if hashed {
		places = append(places, fmt.Sprintf("p.event_id >= '%s'", leastOf(0xff<<40)))
	}
	return strings.Replace(s.look, "/*days*/ true", "("+strings.Join(places, " or ")+")", 1)
}

// leastOf returns the smallest UUID with this time.
func leastOf(ms int64) string {
	digits := fmt.Sprintf("%012x", ms)
	return digits[:8] + "-" + digits[8:] + "-0000-0000-000000000000"
}

// complete ends a member's savepoint. Its record is written with the group's commit, so a COMMIT of another handler cannot complete
// it.
func (s *groupStore) complete(ctx context.Context, consumer int16, record pgtype.UUID, check []string) error {
	if len(check) > 0 { // deferred constraint checks must fail here, where their handler is known
		for _, sql := range check {
			if err := pgtx.Queue(ctx, sql); err != nil {
				return err
			}
		}
		if err := pgtx.Flush(ctx); err != nil {
			return &constraintsError{err}
		}
	}
	r := recorder{insert: s.record, consumer: consumer}
	collected, err := pgunit.Collect(ctx, r, record)
	if err == nil && !collected { // the handler has created savepoints itself
		tx, _ := pgtx.From(ctx)
		_, err = tx.Exec(ctx, r.insert, []pgtype.UUID{record}, consumer)
	}
	return err
}

// constraintsError is the error of the check, or of a statement that a handler has queued.
type constraintsError struct{ error }

func (e *constraintsError) Unwrap() error { return e.error }

// gone reports whether a constraint has changed or disappeared since the group began.
func (e *constraintsError) gone() bool {
	var pgErr *pgconn.PgError
	if !errors.As(e.error, &pgErr) {
		return false
	}
	return pgErr.Code == "42704" || pgErr.Code == "42809" || pgErr.Code == "3F000" || pgErr.Code == "42501"
}

// recorder is a pgunit.Collector that writes all records of a group in one statement.
type recorder struct {
	insert   string
	consumer int16
}

func (r recorder) Flush(_ context.Context, items []any, b *pgx.Batch) error {
	records := make([]pgtype.UUID, len(items))
	for i, item := range items {
		records[i] = item.(pgtype.UUID)
	}
	b.Queue(r.insert, records, r.consumer)
	return nil
}

func (r recorder) Explain(err error) error { return fmt.Errorf("record the events: %w", err) }
func (r recorder) Locks() bool             { return false }
