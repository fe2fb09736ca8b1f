// Package cli is the common part of the commands: flags for database, broker and configuration, output, and exit codes.
package cli

import (
	"cmp"
	"context"
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

// connectTimeout bounds the first connection to a database.
const connectTimeout = 10 * time.Second

// App is the state that the commands share.
type App struct {
	Stdin          *os.File
	Stdout, Stderr io.Writer
	Terminal       output.Terminal // of stdout
	ErrTerminal    output.Terminal // of stderr
	Progress       *output.Progress
	Began          bool // the command line is valid

	File, dsn, Schema string
	Name              string // a database of the fleet; "" means all
	JSON              bool

	Fleet    []fleet.Database // databases of the fleet that the command works on
	gathered *gathered        // output about several databases

	Broker Broker            // for commands that talk to a broker
	Config *framework.Config // nil: not loaded
	Reach  reach.Reach
	Conns  int32 // connections that the command needs at once; 0: the default
}

// New returns an App for commands that use these files.
func New(stdin *os.File, stdout, stderr io.Writer) *App {
	return &App{Stdin: stdin, Stdout: stdout, Stderr: stderr, Terminal: output.Of(stdout), ErrTerminal: output.Of(stderr)}
}

// Several reports whether the output of several databases is collected.
func (a *App) Several() bool { return a.gathered != nil }

// Database adds the flags that name an outbox.
func (a *App) Database(c *cobra.Command) *cobra.Command {
	f := c.PersistentFlags()
	f.StringVar(&a.dsn, "dsn", "", "connection string of the database (default: the configuration's, $MILLRACE_POSTGRES_DSN, $DATABASE_URL, or $PGHOST and the like)")
	f.StringVar(&a.Schema, "schema", "", "schema of Millrace's tables (default: the configuration's, $MILLRACE_POSTGRES_SCHEMA, or \"millrace\")")
	f.StringVar(&a.File, "config", "", "configuration file of a service, which names its database, or those of a fleet")
	f.StringVar(&a.Name, "database", "", "one database of the configuration's fleet, by its name (default: all, where the command takes several)")
	return c
}

// Prints adds the flags for the output's format.
func (a *App) Prints(c *cobra.Command) *cobra.Command {
	c.Flags().VarP((*format)(&a.JSON), "output", "o", `output: "table" for people, "json" for scripts`)
	c.Flags().BoolVar(&a.JSON, "json", false, "the same as -o json")
	OneOf(c, "output", "table", "json")
	return c
}

// Connected turns a function that needs a database into a command's function. Its context ends with a signal. If it takes longer
// than a second, the terminal shows the progress.
func (a *App) Connected(f func(ctx context.Context, pool *pgxpool.Pool, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		ctx, stop := UntilSignal()
		defer stop()
		defer a.ShowProgress(c.CommandPath())()
		if _, each := c.Annotations[onEach]; each && len(a.Fleet) > 0 {
			return a.eachConnected(ctx, func(ctx context.Context, pool *pgxpool.Pool) error { return f(ctx, pool, args) })
		}
		pool, err := a.Connect(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		return f(ctx, pool, args)
	}
}

// ShowProgress shows what takes long, until end is called.
func (a *App) ShowProgress(text string) (end func()) {
	stdout, stderr := a.Stdout, a.Stderr
	a.Progress = output.NewProgress(stderr, a.ErrTerminal)
	a.Progress.Say(text)
	a.Stdout, a.Stderr = a.Progress.Writer(stdout), a.Progress.Writer(stderr)
	return func() {
		a.Progress.Stop()
		a.Stdout, a.Stderr = stdout, stderr
	}
}

// Connect connects to the database. With a fleet --database must name one.
func (a *App) Connect(ctx context.Context) (*pgxpool.Pool, error) {
	if len(a.Fleet) > 0 && a.gathered == nil {
		return nil, Misuse(fmt.Errorf("the configuration has a fleet of %s, and this command works on one: name it by --database", words.Count(len(a.Fleet), "database")))
	}
	if a.WithoutPostgres() {
		return nil, Misuse(fmt.Errorf("postgres.disabled is set in %s, and this command works on a database: it has nothing to do for this service", a.File))
	}
	pool, err := a.pool(ctx, cmp.Or(a.dsn, os.Getenv("MILLRACE_POSTGRES_DSN"), os.Getenv("DATABASE_URL")))
	if err != nil {
		return nil, err
	}
	ping, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := pool.Ping(ping); err != nil {
		pool.Close()
		return nil, a.unreachable(pool.Config().ConnConfig, err)
	}
	return pool, nil
}

// pool returns a pool that connects on first use.
func (a *App) pool(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	cfg, err := pgdsn.Parse(dsn)
	if err != nil {
		return nil, Misuse(fmt.Errorf("%s is %w", a.dsnSource(), err))
	}
	a.Reach.Server = &cfg.ConnConfig.Config
	if !strings.Contains(dsn, "pool_max_conns") {
		cfg.MaxConns = max(cfg.MaxConns, a.Conns)
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "millrace"
	}
	if cfg.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement { // with a pooler in transaction mode, named statements of different clients collide
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return pool, nil
}

// unreachable describes in one sentence why there is no connection. pgx's error repeats the address for each attempt.
func (a *App) unreachable(c *pgx.ConnConfig, err error) error {
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

// Logger returns a logger that writes to standard error.
func (a *App) Logger() *slog.Logger {
	options, asJSON := &slog.HandlerOptions{}, a.JSON
	if a.Config != nil {
		options.Level, asJSON = a.Config.Log.Level, asJSON || a.Config.Log.Format == "json"
	}
	if asJSON {
		return slog.New(slog.NewJSONHandler(a.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(a.Stderr, options))
}
