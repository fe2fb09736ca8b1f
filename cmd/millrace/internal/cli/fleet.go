package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/internal/settings"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/fleet"
)

// SelectDatabase selects the databases of the configuration's fleet: the one that --database names, or all.
func (a *App) SelectDatabase(ctx context.Context) error {
	switch {
	case a.Name != "" && a.dsn != "":
		return Misuse(errors.New("--database and --dsn both name a database: want one of them"))
	case a.Name != "" && (a.Config == nil || !a.Config.Fleet.There()):
		return Misuse(errors.New("--database needs a configuration with a section fleet: name it by --config"))
	case a.dsn != "" || a.Config == nil || !a.Config.Fleet.There():
		return nil
	}
	all, err := a.Config.Fleet.Provider()(ctx)
	if err == nil {
		err = fleet.Check("databases", all)
	}
	if err != nil {
		return err
	}
	if a.Name == "" {
		a.Fleet = all
		return nil
	}
	var names []string
	for _, db := range all {
		if db.Name == a.Name {
			a.dsn = db.DSN
			return nil
		}
		names = append(names, db.Name)
	}
	err = fmt.Errorf("--database is %q: the fleet of %s has no such database", a.Name, a.File)
	if near := settings.Nearest(a.Name, names); near != "" {
		err = fmt.Errorf("%w; did you mean %q?", err, near)
	}
	return Misuse(err)
}

// onEach marks a command that works on all databases of a fleet, one after the other.
const onEach = "on each database"

// OnEachDatabase marks a command to run on all databases of a fleet.
func OnEachDatabase(c *cobra.Command) *cobra.Command {
	c.Annotations = map[string]string{onEach: ""}
	return c
}

// gathered collects a command's output about several databases.
type gathered struct {
	columns   []string // columns of each table, in the order of first use
	rows      map[string][][]string
	documents []any
	nothing   string // the last message about an empty database
}

// ForEach runs f for each database of the fleet. The output gets a column, or in JSON a field, with the database's name. ForEach
// continues after an error, and returns all errors.
func (a *App) ForEach(f func() error) error {
	g := &gathered{rows: map[string][][]string{}}
	a.gathered = g
	var errs []error
	status := ExitStatus(ExitOK)
	for _, db := range a.Fleet {
		a.Name, a.dsn, a.Reach.Database = db.Name, db.DSN, db.Name
		var code ExitStatus
		switch err := f(); {
		case errors.As(err, &code):
			status = max(status, code)
		case err != nil:
			errs = append(errs, fmt.Errorf("database %s: %w", db.Name, err))
		}
	}
	a.gathered = nil
	switch {
	case a.JSON:
		if err := a.PrintJSON(append([]any{}, g.documents...)); err != nil {
			return err
		}
	case len(g.columns) == 0 && g.nothing != "":
		a.Say("%s", g.nothing)
	}
	for _, columns := range g.columns {
		a.Table("DATABASE "+columns, g.rows[columns])
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if status != ExitOK {
		return status
	}
	return nil
}

// table keeps rows until all databases have been asked.
func (g *gathered) table(database, columns string, rows [][]string) {
	if !slices.Contains(g.columns, columns) {
		g.columns = append(g.columns, columns)
	}
	for _, row := range rows {
		g.rows[columns] = append(g.rows[columns], append([]string{words.OneLine(database)}, row...))
	}
}

// json keeps JSON output: objects, or the objects of a list.
func (g *gathered) json(database string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var value any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		return err
	}
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	for _, one := range list {
		if object, ok := one.(map[string]any); ok {
			object["database"] = database
		}
		g.documents = append(g.documents, one)
	}
	return nil
}

// eachConnected runs f on each database of a fleet, with a pool.
func (a *App) eachConnected(ctx context.Context, f func(ctx context.Context, pool *pgxpool.Pool) error) error {
	return a.ForEach(func() error {
		a.Progress.Say("Asking " + a.Name)
		pool, err := a.Connect(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		return f(ctx, pool)
	})
}

// Pools returns a pool for each database of the fleet, in order. A pool connects on first use, so a database may be down. The
// caller closes the pools.
func (a *App) Pools(ctx context.Context) (all []*pgxpool.Pool, err error) {
	for _, db := range a.Fleet {
		pool, err := a.pool(ctx, db.DSN)
		if err != nil {
			for _, made := range all {
				made.Close()
			}
			return nil, fmt.Errorf("database %s: %w", db.Name, err)
		}
		all = append(all, pool)
	}
	return all, nil
}
