package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

// connectTimeout bounds how long a database may take to answer at first.
const connectTimeout = 10 * time.Second

// app is what the commands share.
type app struct {
	stdin          *os.File
	stdout, stderr io.Writer
	began          bool // the command line was understood

	dsn, schema string
	json        bool
}

// database gives a command the flags that name an outbox.
func (a *app) database(c *cobra.Command) *cobra.Command {
	c.PersistentFlags().StringVar(&a.dsn, "dsn", "", "the database (default $MILLRACE_POSTGRES_DSN, $DATABASE_URL, or PGHOST and its like)")
	c.PersistentFlags().StringVar(&a.schema, "schema", "millrace", "the schema of Millrace's tables")
	return c
}

func (a *app) jsonFlag(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return c
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
	cfg, err := pgxpool.ParseConfig(cmp.Or(a.dsn, os.Getenv("MILLRACE_POSTGRES_DSN"), os.Getenv("DATABASE_URL")))
	if err != nil {
		return nil, usageError{fmt.Errorf("--dsn: %w", err)}
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "millrace"
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	ping, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := pool.Ping(ping); err != nil {
		pool.Close()
		return nil, fmt.Errorf("%w; --dsn, $MILLRACE_POSTGRES_DSN or $DATABASE_URL name the database", err)
	}
	return pool, nil
}

// logger writes to standard error.
func (a *app) logger() *slog.Logger {
	if a.json {
		return slog.New(slog.NewJSONHandler(a.stderr, nil))
	}
	return slog.New(slog.NewTextHandler(a.stderr, nil))
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
