// Package pgdays keeps tables that are partitioned by UTC day: it makes days ahead, lists them, and drops those that are
// past without blocking anybody who writes to the others.
//
// A table's own migration has a function <schema>.<table>_days(ahead int), which makes the days that are missing. The
// days are named <table>_YYYYMMDD; a partition <table>_old, of a table whose key is a UUIDv7, holds all that is before
// them. There is no DEFAULT partition: one row of tomorrow in it would forbid making tomorrow, and nothing could be
// detached concurrently.
package pgdays

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgschema"
)

//go:embed queries/*.sql
var files embed.FS

var daysQuery = pgschema.Query(files, "days", "")

// ahead is how many days are made before they come: as long may nobody look after them.
const ahead = 7

// DB is a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Table is one that is partitioned by day.
type Table struct{ Schema, Name string }

// Day is a partition.
type Day struct {
	Date      time.Time // midnight, UTC; of <table>_old its last day
	Partition string
	Bytes     int64 // with indexes
	Rows      int64 // an estimate; 0 also when there is none yet

	state string
}

// End is when the day has ended.
func (d Day) End() time.Time { return d.Date.AddDate(0, 0, 1) }

// What became of a day that was to be dropped.
const (
	attached = "attached"
	pending  = "pending"  // its DETACH was interrupted
	detached = "detached" // its DROP never came
)

func (t Table) name(partition string) string { return pgx.Identifier{t.Schema, partition}.Sanitize() }

// Ahead makes the days that are missing, of yesterday to a week from today. It needs no more than the right to call the
// table's function. It gives up when it gets no lock within 2 s.
func (t Table) Ahead(ctx context.Context, db DB) error {
	if _, err := db.Exec(ctx, "select "+t.name(t.Name+"_days")+"($1)", ahead); err != nil {
		return fmt.Errorf("make days of %s: %w", t.Name, err)
	}
	return nil
}

// Days lists the partitions that are days, the oldest first.
func (t Table) Days(ctx context.Context, db DB) ([]Day, error) {
	all, err := t.all(ctx, db)
	return slices.DeleteFunc(all, func(d Day) bool { return d.state == detached }), err
}

// all lists also those that an interrupted Drop has left behind.
func (t Table) all(ctx context.Context, db DB) ([]Day, error) {
	rows, err := db.Query(ctx, daysQuery, `"`+t.Schema+`"`, t.Name)
	if err != nil {
		return nil, fmt.Errorf("list days of %s: %w", t.Name, err)
	}
	var days []Day
	var d Day
	var end *time.Time
	_, err = pgx.ForEachRow(rows, []any{&d.Partition, &d.state, &d.Bytes, &d.Rows, &end}, func() error {
		switch date, err := time.Parse("20060102", strings.TrimPrefix(d.Partition, t.Name+"_")); {
		case err == nil:
			d.Date = date
		case end != nil:
			d.Date = end.UTC().AddDate(0, 0, -1)
		default: // the rest of an interrupted drop of <table>_old, which no longer knows its bounds
			d.Date = time.Time{}
		}
		days = append(days, d)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list days of %s: %w", t.Name, err)
	}
	slices.SortFunc(days, func(a, b Day) int { return a.Date.Compare(b.Date) })
	return days, nil
}

// Drop drops the days that ended at or before the time, and returns them: partitions, and what an earlier call has detached
// and not dropped. A younger table of a day's name that is no partition is left alone: somebody else has detached it. It waits until transactions that write to the
// table have ended, and holds nobody up meanwhile. When it is interrupted, or several processes do it at once, the next
// one finishes. It must be called by the tables' owner, outside of a transaction.
func (t Table) Drop(ctx context.Context, pool *pgxpool.Pool, before time.Time) ([]Day, error) {
	days, err := t.all(ctx, pool)
	if isBusy(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// PostgreSQL detaches one at a time: what was interrupted comes first.
	slices.SortStableFunc(days, func(a, b Day) int { return strings.Compare(b.state, a.state) })
	var dropped []Day
	for _, d := range days {
		if d.End().After(before) && d.state != pending { // which would stop every other DETACH
			continue
		}
		switch mine, err := t.drop(ctx, pool, d, before); {
		case err != nil:
			return dropped, err
		case mine:
			dropped = append(dropped, d)
		}
	}
	return dropped, nil
}

// drop reports whether it was this process that dropped the day. Of a day that ended later it only finishes the DETACH.
func (t Table) drop(ctx context.Context, pool *pgxpool.Pool, d Day, before time.Time) (bool, error) {
	var err error
	alter := "alter table " + t.name(t.Name) + " detach partition " + t.name(d.Partition)
	switch d.state {
	case attached:
		_, err = pool.Exec(ctx, alter+" concurrently")
	case pending:
		_, err = pool.Exec(ctx, alter+" finalize")
	}
	if err == nil && d.End().After(before) {
		return false, nil
	}
	if err == nil {
		_, err = pool.Exec(ctx, "drop table "+t.name(d.Partition))
	}
	if err == nil || ctx.Err() != nil {
		return err == nil, err
	}
	if isBusy(err) {
		return false, nil
	}
	all, lookErr := t.all(ctx, pool)
	if isBusy(lookErr) {
		return false, nil
	}
	for _, now := range all {
		if now.Partition == d.Partition && (now.state != detached || d.state == detached) {
			return false, errors.Join(t.hint(d, err), lookErr)
		}
	}
	return false, lookErr
}

// isBusy reports whether another process drops a day at the same time: a detach is pending, or they waited for each other. That
// process does the rest.
func isBusy(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "55000" || pgErr.Code == "40P01")
}

func (t Table) hint(d Day, err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42501" {
		return fmt.Errorf("drop %s: %w: %w", d.Partition, ErrNotOwner, err)
	}
	return fmt.Errorf("drop %s: %w", d.Partition, err)
}

// ErrNotOwner means that this role cannot drop days.
var ErrNotOwner = errors.New(`only the tables' owner drops days: run "millrace retention run" as that role, with how long to keep them`)

// overdue is for how long days that should be dropped are left to whoever owns them before housekeeping complains.
const overdue = 48 * time.Hour

// Excuse returns err, of housekeeping that keeps days for so long, unless it is ErrNotOwner and the owner is not late: a
// service's role need not own the tables.
func (t Table) Excuse(ctx context.Context, db DB, keep time.Duration, err error) error {
	if !errors.Is(err, ErrNotOwner) {
		return err
	}
	days, lookErr := t.Days(ctx, db)
	if lookErr == nil && (len(days) == 0 || time.Since(days[0].End()) < keep+overdue) {
		return nil
	}
	return errors.Join(err, lookErr)
}

// Owned returns ErrNotOwner where Drop would fail, for those that must do something before it.
func (t Table) Owned(ctx context.Context, db DB) error {
	rows, err := db.Query(ctx, `select pg_has_role(relowner, 'USAGE') from pg_class where oid = to_regclass($1::text)`, t.name(t.Name))
	if err != nil {
		return fmt.Errorf("owner of %s: %w", t.Name, err)
	}
	switch owned, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool]); {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("table %s does not exist: run \"millrace migrate up\"", t.name(t.Name))
	case err != nil:
		return fmt.Errorf("owner of %s: %w", t.Name, err)
	case !owned:
		return fmt.Errorf("%s: %w", t.Name, ErrNotOwner)
	}
	return nil
}
