// Package pgdays maintains tables that are partitioned by UTC day: it creates days ahead, lists them, and drops expired ones without
// blocking writers to the others.
//
// A table's own migration has a function <schema>.<table>_days(ahead int), which creates missing days. The days are named
// <table>_YYYYMMDD. If the table's key is a UUIDv7, a partition <table>_old holds everything before them. There is no DEFAULT partition:
// one row of tomorrow in it would prevent creating tomorrow's partition, and no partition could be detached concurrently.
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

// ahead is how many days are created in advance. For that long, the housekeeping may be down.
const ahead = 7

// DB is a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Table is a table that is partitioned by day.
type Table struct{ Schema, Name string }

// Day is a partition.
type Day struct {
	Date      time.Time // midnight, UTC; for <table>_old its last day
	Partition string
	Bytes     int64 // with indexes
	Rows      int64 // an estimate; 0 also if there is none yet

	state string
}

// End returns the end of the day.
func (d Day) End() time.Time { return d.Date.AddDate(0, 0, 1) }

// The state of a day.
const (
	attached = "attached"
	pending  = "pending"  // its DETACH was interrupted
	detached = "detached" // its DROP was not executed
)

func (t Table) name(partition string) string { return pgx.Identifier{t.Schema, partition}.Sanitize() }

// Ahead creates the missing days, from yesterday to a week from today. It needs only the right to call the table's function. It gives up
// if it gets no lock within 2 s.
func (t Table) Ahead(ctx context.Context, db DB) error {
	if _, err := db.Exec(ctx, "select "+t.name(t.Name+"_days")+"($1)", ahead); err != nil {
		return fmt.Errorf("make days of %s: %w", t.Name, err)
	}
	return nil
}

// Days returns the partitions that are days, the oldest first.
func (t Table) Days(ctx context.Context, db DB) ([]Day, error) {
	all, err := t.all(ctx, db)
	return slices.DeleteFunc(all, func(d Day) bool { return d.state == detached }), err
}

// all also returns days that an interrupted Drop has left behind.
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
		default: // from an interrupted drop of <table>_old, whose bounds are no longer known
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

// Drop drops the days that ended at or before the given time, and returns them. It also drops days of that time that an earlier call has
// detached but not dropped. It leaves alone a detached table of a later day, because someone else has detached it. Drop waits until
// transactions that write to the table have ended, and blocks no one meanwhile. If it is interrupted, or several processes run it at
// once, the next call finishes the work. It must be called by the tables' owner, outside of a transaction.
func (t Table) Drop(ctx context.Context, pool *pgxpool.Pool, before time.Time) ([]Day, error) {
	days, err := t.all(ctx, pool)
	if isBusy(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// PostgreSQL detaches one partition at a time, so interrupted ones come first.
	slices.SortStableFunc(days, func(a, b Day) int { return strings.Compare(b.state, a.state) })
	var dropped []Day
	for _, d := range days {
		if d.End().After(before) && d.state != pending { // a pending one would block every other DETACH
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

// drop reports whether this process dropped the day. If the day ended after before, it only finishes the DETACH.
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

// isBusy reports whether another process is dropping a day at the same time: a detach is pending, or there was a deadlock. That process
// does the rest.
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

// overdue is how long the owner may delay dropping days before housekeeping reports it.
const overdue = 48 * time.Hour

// Excuse returns err of a service's housekeeping. It returns nil for ErrNotOwner unless the owner is late, because a service's role need
// not own the tables. See Expiry for service and keep.
func (t Table) Excuse(ctx context.Context, db DB, service string, keep time.Duration, err error) error {
	if !errors.Is(err, ErrNotOwner) {
		return err
	}
	days, lookErr := t.Days(ctx, db)
	if lookErr == nil && len(days) == 0 {
		return nil
	}
	before, expiryErr := t.Expiry(ctx, db, service, keep)
	if lookErr == nil && expiryErr == nil && before.Sub(days[0].End()) < overdue {
		return nil
	}
	return errors.Join(err, lookErr, expiryErr)
}

// Owned returns ErrNotOwner if Drop would fail. It is for callers that must do something before Drop.
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
