package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/internal/pgdsn"
	"github.com/millrace-go/millrace/internal/reach"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/fleet"
)

// connectTimeout bounds how long a database may take to answer the first time.
const connectTimeout = 10 * time.Second

// app is what the commands share.
type app struct {
	stdin          *os.File
	stdout, stderr io.Writer
	terminal       output.Terminal // behind stdout
	errTerminal    output.Terminal // behind stderr
	progress       *output.Progress
	began          bool // the command line was understood

	file, dsn, schema string
	name              string // of the fleet's database; "" means all
	json              bool

	fleet    []fleet.Database // that the command works on, if it does on several
	gathered *gathered        // what is printed about them

	broker broker            // of those commands that talk to one
	cfg    *framework.Config // nil: none was read
	reach  reach.Reach
	conns  int32 // that the command needs at once; 0: a few
}

// database gives a command the flags that name an outbox.
func (a *app) database(c *cobra.Command) *cobra.Command {
	f := c.PersistentFlags()
	f.StringVar(&a.dsn, "dsn", "", "connection string of the database (default: the configuration's, $MILLRACE_POSTGRES_DSN, $DATABASE_URL, or $PGHOST and the like)")
	f.StringVar(&a.schema, "schema", "", "schema of Millrace's tables (default: the configuration's, $MILLRACE_POSTGRES_SCHEMA, or \"millrace\")")
	f.StringVar(&a.file, "config", "", "configuration file of a service, which names its database, or those of a fleet")
	f.StringVar(&a.name, "database", "", "one database of the configuration's fleet, by its name (default: all, where the command takes several)")
	return c
}

// prints gives a command that prints the flag that says how.
func (a *app) prints(c *cobra.Command) *cobra.Command {
	c.Flags().VarP((*format)(&a.json), "output", "o", `output: "table" for people, "json" for scripts`)
	c.Flags().BoolVar(&a.json, "json", false, "the same as -o json")
	oneOf(c, "output", "table", "json")
	return c
}

// format is whether JSON is printed, as a flag's value.
type format bool

func (f *format) Type() string { return "format" }

func (f *format) String() string {
	if *f {
		return "json"
	}
	return "table"
}

func (f *format) Set(s string) error {
	if s != "json" && s != "table" {
		return errors.New("want table or json")
	}
	*f = s == "json"
	return nil
}

// oneOf has the shell complete a flag's values.
func oneOf(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag
	}
}

// limitVar gives a list the flag --limit.
func limitVar(c *cobra.Command, limit *int) {
	c.Flags().IntVar(limit, "limit", 100, "list at most this many")
}

// checkLimit is for lists.
func checkLimit(n int) error {
	if n < 1 {
		return usageError{fmt.Errorf("--limit is %d: want 1 or more", n)}
	}
	return nil
}

// connected makes a command's function of one that needs a database; its context ends with a signal. What takes longer than
// a second is told on the terminal.
func (a *app) connected(f func(ctx context.Context, pool *pgxpool.Pool, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		ctx, stop := untilSignal()
		defer stop()
		defer a.showProgress(c.CommandPath())()
		if _, each := c.Annotations[onEach]; each && len(a.fleet) > 0 {
			return a.eachConnected(ctx, func(ctx context.Context, pool *pgxpool.Pool) error { return f(ctx, pool, args) })
		}
		pool, err := a.connect(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		return f(ctx, pool, args)
	}
}

// showProgress tells what takes long, until end is called.
func (a *app) showProgress(text string) (end func()) {
	stdout, stderr := a.stdout, a.stderr
	a.progress = output.NewProgress(stderr, a.errTerminal)
	a.progress.Say(text)
	a.stdout, a.stderr = a.progress.Writer(stdout), a.progress.Writer(stderr)
	return func() {
		a.progress.Stop()
		a.stdout, a.stderr = stdout, stderr
	}
}

func (a *app) connect(ctx context.Context) (*pgxpool.Pool, error) {
	if len(a.fleet) > 0 && a.gathered == nil {
		return nil, usageError{fmt.Errorf("the configuration has a fleet of %s, and this command works on one: name it by --database", words.Count(len(a.fleet), "database"))}
	}
	dsn := cmp.Or(a.dsn, os.Getenv("MILLRACE_POSTGRES_DSN"), os.Getenv("DATABASE_URL"))
	cfg, err := pgdsn.Parse(dsn)
	if err != nil {
		return nil, usageError{fmt.Errorf("%s is %w", a.dsnSource(), err)}
	}
	a.reach.Server = &cfg.ConnConfig.Config
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
		return nil, a.unreachable(cfg.ConnConfig, err)
	}
	return pool, nil
}

// unreachable says in one sentence why there is no connection: pgx's error repeats the address for each attempt.
func (a *app) unreachable(c *pgx.ConnConfig, err error) error {
	var (
		refused *pgconn.PgError
		system  syscall.Errno
		lookup  *net.DNSError
	)
	at := fmt.Sprintf("%s:%d", c.Host, c.Port)
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("PostgreSQL at %s refuses the connection: %s\nCorrect %s.", at, refused.Message, a.dsnSource())
	case errors.As(err, &system):
		err = system
	case errors.As(err, &lookup):
		err = errors.New(lookup.Err)
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("no answer within %s", connectTimeout)
	}
	return fmt.Errorf("no PostgreSQL answers at %s: %w\nStart it, or name another one by --dsn, --config, $MILLRACE_POSTGRES_DSN or $DATABASE_URL.\n"+
		`If "millrace dev" runs in another terminal, run here the "export" lines that it printed there.`, at, err)
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
	if a.gathered != nil {
		return a.gathered.json(a.name, v)
	}
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table prints rows of cells: see output.Columns. Of the columns that are called STATE it colours the words.
func (a *app) table(columns string, rows [][]string) {
	if a.gathered != nil {
		a.gathered.table(a.name, columns, rows)
		return
	}
	all := output.Columns(columns)
	for i := range all {
		if all[i].Head == "STATE" {
			all[i].Paint = a.paintState
		}
	}
	a.terminal.Table(a.stdout, all, rows)
}

// say prints a line for people.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.stdout, format+"\n", args...)
}
