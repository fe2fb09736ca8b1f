package pgschema

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// Line is one component's line of migrations: files named migrations/001_name.up.sql, numbered without gaps.
type Line struct {
	Component string
	Files     fs.FS
	Command   string // what a user calls to apply it, for error messages
}

// queryer is a pool, a connection or a transaction.
type queryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Up applies what is missing, in one transaction. Concurrent calls wait for one another.
func (l Line) Up(ctx context.Context, db pgtx.DB, schema string) error {
	steps, err := l.steps()
	if err != nil {
		return err
	}
	// Read committed, whatever the role's default: what another process has applied while this one waited must be seen.
	opts := []pgtx.Option{pgtx.Isolation(pgx.ReadCommitted)}
	if _, joins := pgtx.From(ctx); joins {
		opts = nil
	}
	err = pgtx.Run(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		// The number is arbitrary; it is Millrace's in every database.
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(7811887411823467)`); err != nil {
			return err
		}
		// Not "create … if not exists" alone: that asks for the CREATE privilege even where nothing is missing.
		for _, s := range []struct{ exists, create string }{
			{`select to_regnamespace($1::text) is not null`, `create schema {schema}`},
			{`select to_regclass($1::text || '.migration') is not null`, `create table {schema}.migration (
				component text not null, version int not null, name text not null,
				applied_at timestamptz not null default now(), primary key (component, version))`},
		} {
			var exists bool
			if err := tx.QueryRow(ctx, s.exists, `"`+schema+`"`).Scan(&exists); err != nil {
				return err
			}
			if !exists {
				if _, err := tx.Exec(ctx, Render(s.create, schema)); err != nil {
					return err
				}
			}
		}
		at, err := l.version(ctx, tx, schema)
		if err != nil {
			return err
		}
		for i, s := range steps[min(at, len(steps)):] {
			v := at + i + 1
			if _, err := tx.Exec(ctx, Render(s.sql, schema)); err != nil {
				return fmt.Errorf("migration %d (%s): %w", v, s.name, err)
			}
			if _, err := tx.Exec(ctx, Render(`insert into {schema}.migration (component, version, name) values ($1, $2, $3)`, schema),
				l.Component, v, s.name); err != nil {
				return err
			}
		}
		return nil
	}, opts...)
	if err != nil {
		return fmt.Errorf("migrate %s in schema %q: %w", l.Component, schema, err)
	}
	return nil
}

// Check returns an error that names the remedy when the schema is older or newer than this program.
func (l Line) Check(ctx context.Context, db queryer, schema string) error {
	steps, err := l.steps()
	if err != nil {
		return err
	}
	var there bool
	if err := db.QueryRow(ctx, `select to_regclass($1::text) is not null`, `"`+schema+`".migration`).Scan(&there); err != nil {
		return fmt.Errorf("check schema %q: %w", schema, err)
	}
	at := 0
	if there {
		if at, err = l.version(ctx, db, schema); err != nil {
			return fmt.Errorf("check schema %q: %w", schema, err)
		}
	}
	switch {
	case at < len(steps):
		return fmt.Errorf("schema %q is at version %d of %s, this program needs %d: run %s", schema, at, l.Component, len(steps), l.Command)
	case at > len(steps):
		return fmt.Errorf("schema %q is at version %d of %s, this program knows only %d: run a newer program", schema, at, l.Component, len(steps))
	}
	return nil
}

func (l Line) version(ctx context.Context, db queryer, schema string) (int, error) {
	var v int
	err := db.QueryRow(ctx, Render(`select coalesce(max(version), 0) from {schema}.migration where component = $1`, schema), l.Component).Scan(&v)
	return v, err
}

type step struct{ name, sql string }

func (l Line) steps() ([]step, error) {
	names, err := fs.Glob(l.Files, "migrations/*.up.sql")
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	steps := make([]step, 0, len(names))
	for i, n := range names {
		base := strings.TrimSuffix(path.Base(n), ".up.sql")
		number, name, _ := strings.Cut(base, "_")
		if v, err := strconv.Atoi(number); err != nil || v != i+1 {
			return nil, fmt.Errorf("migration file %s of %s: want number %03d", n, l.Component, i+1)
		}
		b, err := fs.ReadFile(l.Files, n)
		if err != nil {
			return nil, err
		}
		steps = append(steps, step{name, string(b)})
	}
	return steps, nil
}
