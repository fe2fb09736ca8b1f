package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/internal/pgdsn"
)

// connectTimeout bounds how long a database may take to answer at first.
const connectTimeout = 10 * time.Second

// app is what the commands share.
type app struct {
	stdin          *os.File
	stdout, stderr io.Writer
	began          bool // the command line was understood

	file, dsn, schema string
	json              bool

	broker broker            // of those commands that talk to one
	cfg    *framework.Config // nil: none was read
	reach  reach
	conns  int32 // that the command needs at once; 0: a few
}

// database gives a command the flags that name an outbox.
func (a *app) database(c *cobra.Command) *cobra.Command {
	f := c.PersistentFlags()
	f.StringVar(&a.dsn, "dsn", "", "the database (default the configuration's, $MILLRACE_POSTGRES_DSN, $DATABASE_URL, or PGHOST and its like)")
	f.StringVar(&a.schema, "schema", "", "the schema of Millrace's tables (default the configuration's, $MILLRACE_POSTGRES_SCHEMA, or millrace)")
	f.StringVar(&a.file, "config", "", "the configuration of a service, which says where its database is")
	return c
}

// prints gives a command that prints the flag that says how.
func (a *app) prints(c *cobra.Command) *cobra.Command {
	c.Flags().VarP((*output)(&a.json), "output", "o", `"table" for people, or "json" for scripts`)
	c.Flags().BoolVar(&a.json, "json", false, "the same as -o json")
	oneOf(c, "output", "table", "json")
	return c
}

// output is whether JSON is printed, as a flag's value.
type output bool

func (o *output) Type() string { return "format" }

func (o *output) String() string {
	if *o {
		return "json"
	}
	return "table"
}

func (o *output) Set(s string) error {
	if s != "json" && s != "table" {
		return errors.New("want table or json")
	}
	*o = s == "json"
	return nil
}

// oneOf has the shell complete a flag's values.
func oneOf(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag
	}
}

// checkLimit is for lists.
func checkLimit(n int) error {
	if n < 1 {
		return usageError{fmt.Errorf("--limit is %d: want 1 or more", n)}
	}
	return nil
}

// connected makes a command's function of one that needs a database; its context ends with a signal.
func (a *app) connected(f func(ctx context.Context, pool *pgxpool.Pool, args []string) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		ctx, stop := untilSignal()
		defer stop()
		pool, err := a.connect(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		return f(ctx, pool, args)
	}
}

func (a *app) connect(ctx context.Context) (*pgxpool.Pool, error) {
	dsn := cmp.Or(a.dsn, os.Getenv("MILLRACE_POSTGRES_DSN"), os.Getenv("DATABASE_URL"))
	cfg, err := pgdsn.Parse(dsn)
	if err != nil {
		return nil, usageError{fmt.Errorf("--dsn is %w", err)}
	}
	a.reach.server = &cfg.ConnConfig.Config
	if !strings.Contains(dsn, "pool_max_conns") {
		cfg.MaxConns = max(cfg.MaxConns, a.conns)
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "millrace"
	}
	if cfg.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement { // a pooler in transaction mode mixes statements up that have names
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	ping, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := pool.Ping(ping); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to PostgreSQL at %s:%d: %w; --dsn, --config, $MILLRACE_POSTGRES_DSN or $DATABASE_URL name the database", cfg.ConnConfig.Host, cfg.ConnConfig.Port, err)
	}
	return pool, nil
}

// logger writes to standard error.
func (a *app) logger() *slog.Logger {
	options, asJSON := &slog.HandlerOptions{}, a.json
	if a.cfg != nil {
		options.Level, asJSON = a.cfg.Log.Level, asJSON || a.cfg.Log.Format == "json"
	}
	if asJSON {
		return slog.New(slog.NewJSONHandler(a.stderr, options))
	}
	return slog.New(slog.NewTextHandler(a.stderr, options))
}

func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table prints lines of cells, and a dash for an empty one.
func (a *app) table(head string, lines [][]string) {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(head, " ", "\t"))
	for _, cells := range lines {
		for i := range cells {
			cells[i] = cmp.Or(cells[i], "-")
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush() // nobody reads, then
}

// ago is a duration for people.
func ago(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
