package pgschema

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// Migration is one numbered change of the schema.
type Migration struct {
	Component string     `json:"component"`
	Version   int        `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at"` // nil: pending
	Known     bool       `json:"known"`      // by this program; an unknown one was applied by a newer program
}

// Status returns applied and pending migrations, by version.
func (m *Migrator) Status(ctx context.Context) ([]Migration, error) {
	steps, err := m.line.steps()
	if err != nil {
		return nil, err
	}
	all := make([]Migration, 0, len(steps))
	for i, s := range steps {
		all = append(all, Migration{Component: m.line.Component, Version: i + 1, Name: s.name, Known: true})
	}
	err = pgtx.Run(ctx, m.db, func(ctx context.Context, tx pgx.Tx) error {
		there, err := exists(ctx, tx, `select to_regclass($1::text || '.migration') is not null`, m.schema)
		if err != nil || !there {
			return err
		}
		rows, err := tx.Query(ctx, Render(`select version, name, applied_at from {schema}.migration where component = $1 order by version`, m.schema), m.line.Component)
		if err != nil {
			return err
		}
		a := Migration{Component: m.line.Component}
		_, err = pgx.ForEachRow(rows, []any{&a.Version, &a.Name, &a.AppliedAt}, func() error {
			if i := slices.IndexFunc(all, func(k Migration) bool { return k.Version == a.Version }); i >= 0 {
				all[i].AppliedAt = a.AppliedAt
			} else {
				all = append(all, a)
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("migrations of %s in schema %q: %w", m.line.Component, m.schema, err)
	}
	return all, nil
}

// Check returns an error with the remedy if the schema is older than this program, or newer and not usable by programs of this version.
func (m *Migrator) Check(ctx context.Context) error {
	return pgtx.Run(ctx, m.db, m.CheckIn)
}

// CheckIn is Check in a transaction of the caller.
func (m *Migrator) CheckIn(ctx context.Context, tx pgx.Tx) error {
	return m.line.Check(ctx, tx, m.schema)
}
