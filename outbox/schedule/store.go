package schedule

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

//go:embed migrations/*.sql queries/*.sql
var files embed.FS

var migrations = pgschema.Line{Component: "schedule", Files: files, Command: "schedule.Migrate"}

// Migrate creates the table of schedules in the schema ("" means "millrace"), or brings it up to date. It may run at any time,
// in several processes at once.
func Migrate(ctx context.Context, db pgtx.DB, schema string) error {
	m, err := Migrations(db, schema)
	if err != nil {
		return err
	}
	return m.Up(ctx)
}

// Migrations returns what migrates the table in the schema ("" means "millrace") up and down, tells what was applied, and
// prints the statements.
func Migrations(db pgtx.DB, schema string) (*pgschema.Migrator, error) {
	return migrations.In(db, schema)
}

type statements struct{ register, changed, change, take, fired string }

func statementsIn(schema string) statements {
	query := func(name string) string { return pgschema.Query(files, name, schema) }
	return statements{register: query("register"), changed: query("changed"), change: query("change"), take: query("take"), fired: query("fired")}
}

// state is a schedule's row, as a transaction has found it.
type state struct {
	now      time.Time  // the server's
	dueAfter *time.Time // times after this one are due; nil: there is no row
	mine     bool       // the transaction has locked the row
}

// take locks the schedule's row, unless the time was fired or another process has locked it. A zero time means any.
func (s *Scheduler) take(ctx context.Context, tx pgx.Tx, e *entry, due time.Time) (found state, err error) {
	err = tx.QueryRow(ctx, s.sql.take, s.cfg.Service, e.Name, orNull(due)).Scan(&found.now, &found.dueAfter, &found.mine)
	return found, err
}

// register makes the schedule's row. since is where it goes on; zero: now. If there is a row with another expression or time zone, it
// locks the row, and returns its times and what the transaction has found.
func (s *Scheduler) register(ctx context.Context, tx pgx.Tx, e *entry, since time.Time) (was Times, found state, err error) {
	row := []any{s.cfg.Service, e.Name, e.Expression, e.clock.zone.String()}
	if _, err := tx.Exec(ctx, s.sql.register, append(row, orNull(since))...); err != nil {
		return was, found, err
	}
	err = tx.QueryRow(ctx, s.sql.changed, row...).Scan(&was.Expression, &was.TimeZone, &found.dueAfter, &found.now)
	found.mine = err == nil
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return was, found, err
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// hint says what to do where PostgreSQL only says that a relation does not exist.
func (s *Scheduler) hint(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "42P01" || pgErr.Code == "3F000") {
		return fmt.Errorf("if the table is missing in schema %q, run schedule.Migrate or \"millrace migrate up\": %w", s.cfg.Schema, err)
	}
	return err
}
