package pgschema

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// Line is one component's migrations: files named migrations/001_name.up.sql, numbered without gaps, each with a
// migrations/001_name.down.sql. A line "-- oldest program: 1" in a file names the oldest version whose programs still work with this one.
// Without it, only programs that know the migration do.
type Line struct {
	Component string
	Files     fs.FS
	Command   string // what a program calls to apply it, for error messages

	// BeforeDown may refuse to migrate down, inside the transaction that would do it. Optional.
	BeforeDown func(ctx context.Context, tx pgx.Tx, d Descent) error
}

// Descent is a migration down that BeforeDown must approve.
type Descent struct {
	Schema   string
	From, To int
	Force    bool // the operator accepts that events are lost
}

// In returns the migrator for a schema ("" means Default) of the database.
func (l Line) In(db pgtx.DB, schema string) (*Migrator, error) {
	schema, err := Validate(schema)
	if err != nil {
		return nil, fmt.Errorf("migrate %s: %w", l.Component, err)
	}
	return &Migrator{line: l, db: db, schema: schema}, nil
}

// queryer is a pool, a connection or a transaction.
type queryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Check returns an error with the remedy if the schema is older than this program, or newer and not usable by programs of this version.
func (l Line) Check(ctx context.Context, db queryer, schema string) error {
	steps, err := l.steps()
	if err != nil {
		return err
	}
	var there bool
	if err := db.QueryRow(ctx, `select to_regclass($1::text) is not null`, `"`+schema+`".migration`).Scan(&there); err != nil {
		return fmt.Errorf("check schema %q: %w", schema, err)
	}
	var at, oldest int
	if there {
		// Read through JSON, because the column was added after the table.
		err := db.QueryRow(ctx, Render(`select coalesce(max(version), 0),
				coalesce(max(coalesce((to_jsonb(m) ->> 'oldest')::int, version)) filter (where version > $2), 0)
			from {schema}.migration m where component = $1`, schema), l.Component, len(steps)).Scan(&at, &oldest)
		if err != nil {
			return fmt.Errorf("check schema %q: %w", schema, err)
		}
	}
	switch {
	case at < len(steps):
		return fmt.Errorf("schema %q is at version %d of %s, this program needs %d: run \"millrace migrate up\" or %s",
			schema, at, l.Component, len(steps), l.Command)
	case oldest > len(steps):
		return fmt.Errorf("schema %q is at version %d of %s, for programs that know version %d, this program knows only %d: run a newer program",
			schema, at, l.Component, oldest, len(steps))
	}
	return nil
}

// step is one migration.
type step struct {
	name     string
	up, down string
	oldest   int // 0: only programs that know it
}

var oldestLine = regexp.MustCompile(`(?m)^-- oldest program: (\d+)$`)

func (l Line) steps() ([]step, error) {
	names, err := fs.Glob(l.Files, "migrations/*.up.sql")
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	steps := make([]step, 0, len(names))
	for i, n := range names {
		stem := strings.TrimSuffix(n, ".up.sql")
		number, name, _ := strings.Cut(path.Base(stem), "_")
		if v, err := strconv.Atoi(number); err != nil || v != i+1 {
			return nil, fmt.Errorf("migration file %s of %s: want number %03d", n, l.Component, i+1)
		}
		up, err := fs.ReadFile(l.Files, n)
		if err != nil {
			return nil, err
		}
		down, err := fs.ReadFile(l.Files, stem+".down.sql")
		if err != nil {
			return nil, fmt.Errorf("migration file %s of %s has no way back: %w", n, l.Component, err)
		}
		s := step{name: name, up: string(up), down: string(down)}
		if m := oldestLine.FindStringSubmatch(s.up); m != nil {
			if s.oldest, err = strconv.Atoi(m[1]); err != nil {
				return nil, fmt.Errorf("migration file %s of %s: %w", n, l.Component, err)
			}
		}
		steps = append(steps, s)
	}
	return steps, nil
}
