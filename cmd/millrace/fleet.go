package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/internal/settings"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/fleet"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// selectDatabase finds out which databases of the configuration's fleet are meant: the one that --database names, or all.
func (a *app) selectDatabase(ctx context.Context) error {
	switch {
	case a.name != "" && a.dsn != "":
		return usageError{errors.New("--database and --dsn both name a database: want one of them")}
	case a.name != "" && (a.cfg == nil || !a.cfg.Fleet.There()):
		return usageError{errors.New("--database needs a configuration with a section fleet: name it by --config")}
	case a.dsn != "" || a.cfg == nil || !a.cfg.Fleet.There():
		return nil
	}
	all, err := a.cfg.Fleet.Provider()(ctx)
	if err == nil {
		err = fleet.Check("databases", all)
	}
	if err != nil {
		return err
	}
	if a.name == "" {
		a.fleet = all
		return nil
	}
	var names []string
	for _, db := range all {
		if db.Name == a.name {
			a.dsn = db.DSN
			return nil
		}
		names = append(names, db.Name)
	}
	err = fmt.Errorf("--database is %q: the fleet of %s has no such database", a.name, a.file)
	if near := settings.Nearest(a.name, names); near != "" {
		err = fmt.Errorf("%w; did you mean %q?", err, near)
	}
	return usageError{err}
}

// onEach marks a command that works on all databases of a fleet, one after the other.
const onEach = "on each database"

func onEachDatabase(c *cobra.Command) *cobra.Command {
	c.Annotations = map[string]string{onEach: ""}
	return c
}

// gathered is what a command prints about several databases.
type gathered struct {
	columns   []string // of each table, in the order of the first
	rows      map[string][][]string
	documents []any
	nothing   string // what was said of a database that has nothing
}

// forEach runs f for each database of the fleet. What it prints gets a column, or in JSON a field, with the database's name. It
// goes on after an error, and returns all of them.
func (a *app) forEach(f func() error) error {
	g := &gathered{rows: map[string][][]string{}}
	a.gathered = g
	var errs []error
	status := exitStatus(exitOK)
	for _, db := range a.fleet {
		a.name, a.dsn, a.reach.Database = db.Name, db.DSN, db.Name
		var code exitStatus
		switch err := f(); {
		case errors.As(err, &code):
			status = max(status, code)
		case err != nil:
			errs = append(errs, fmt.Errorf("database %s: %w", db.Name, err))
		}
	}
	a.gathered = nil
	switch {
	case a.json:
		if err := a.printJSON(append([]any{}, g.documents...)); err != nil {
			return err
		}
	case len(g.columns) == 0 && g.nothing != "":
		a.say("%s", g.nothing)
	}
	for _, columns := range g.columns {
		a.table("DATABASE "+columns, g.rows[columns])
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if status != exitOK {
		return status
	}
	return nil
}

// table keeps rows until all databases were asked.
func (g *gathered) table(database, columns string, rows [][]string) {
	if !slices.Contains(g.columns, columns) {
		g.columns = append(g.columns, columns)
	}
	for _, row := range rows {
		g.rows[columns] = append(g.rows[columns], append([]string{words.OneLine(database)}, row...))
	}
}

// json keeps what is printed as JSON: objects, or the objects of a list.
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

// eachConnected is connected for all databases of a fleet.
func (a *app) eachConnected(ctx context.Context, f func(ctx context.Context, pool *pgxpool.Pool) error) error {
	return a.forEach(func() error {
		a.progress.Say("Asking " + a.name)
		pool, err := a.connect(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		return f(ctx, pool)
	})
}

// statusRow is the status of one database of several.
func (a *app) statusRow(r *outboxadmin.Report) {
	oldest, running := "", 0
	if r.Oldest != nil {
		oldest = words.Duration(r.Age(r.Oldest))
	}
	for _, relay := range r.Relays {
		if relay.Alive {
			running++
		}
	}
	counts, _ := a.failedCounts(r)
	a.table("PENDING OLDEST FAILED~ DELAYED RELAYS", [][]string{{r.Pending.String(), oldest, counts, r.Delayed.String(), strconv.Itoa(running)}})
}

// relayFleet publishes the events of all databases until SIGTERM.
func (a *app) relayFleet(cfg framework.Config) error {
	ctx, stop := untilSignal()
	defer stop()
	err := framework.RunFleet(ctx, cfg)
	var wrong *framework.ConfigError
	if errors.As(err, &wrong) {
		return errors.New(strings.Join(wrong.Problems, "\n"))
	}
	return err
}
