package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/reach"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/memory"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// Resolve determines the database. Flags override MILLRACE_* variables, these override the configuration file, and the file overrides other
// variables.
func (a *App) Resolve(c *cobra.Command) error {
	if c.Flags().Lookup("schema") == nil {
		return nil
	}
	if err := a.Broker.Check(); err != nil {
		return err
	}
	a.Reach = reach.Reach{Config: a.File, DSN: a.dsn, Schema: a.Schema}
	if a.File != "" {
		if err := a.Load(); err != nil {
			return err
		}
	}
	if err := a.SelectDatabase(c.Context()); err != nil {
		return err
	}
	a.Reach.Database = a.Name
	if a.Config != nil {
		a.dsn, a.Schema = cmp.Or(a.dsn, a.Config.Postgres.DSN), cmp.Or(a.Schema, a.Config.Postgres.Schema)
	}
	schema, err := pgschema.Validate(cmp.Or(a.Schema, os.Getenv("MILLRACE_POSTGRES_SCHEMA")))
	if err != nil {
		return Misuse(fmt.Errorf("--schema: %w", err))
	}
	a.Schema = schema
	return nil
}

// WithoutPostgres reports whether the configuration's service has no database.
func (a *App) WithoutPostgres() bool {
	return a.Config != nil && a.Config.Postgres.Disabled
}

// Load reads the configuration, or makes one from flags and environment.
func (a *App) Load() error {
	environ := os.Environ()
	if a.File == "" { // settings that a configuration requires and commands do not use
		environ = append([]string{"MILLRACE_SERVICE=millrace", "MILLRACE_KAFKA_CLIENT_ID=millrace"}, environ...)
	}
	for variable, flag := range map[string]string{"MILLRACE_POSTGRES_DSN": a.dsn, "MILLRACE_POSTGRES_SCHEMA": a.Schema} {
		if flag != "" {
			environ = append(environ, variable+"="+flag)
		}
	}
	cfg, err := framework.LoadEnv(a.File, append(environ, a.Broker.environ()...), Drivers...)
	var wrong *framework.ConfigError
	switch {
	case errors.As(err, &wrong) && a.File == "":
		return Misuse(fmt.Errorf("%s; connect to %s by %s", a.Broker.asFlags(strings.Join(wrong.Problems, "; ")), a.BrokerName(), BrokerFlags[a.BrokerName()]))
	case errors.As(err, &wrong):
		return errors.New(a.Broker.asFlags(strings.Join(wrong.Problems, "\n")))
	}
	a.Config = &cfg
	return err
}

// LoadBroker is Load for a command that needs the broker alone: the flag --broker may also name the one to which the configuration's
// migration goes.
func (a *App) LoadBroker() error {
	file, _ := framework.LoadEnv(a.File, os.Environ()) // Load reports what is wrong
	if named := a.Broker.name; named != "" && named == file.Migration.To {
		a.Broker.name = "" // both would be the same broker
		err := a.Load()
		a.Broker.name = named
		if err == nil {
			a.Config.Broker, a.Config.Migration = named, framework.Migration{}
		}
		return err
	}
	return a.Load()
}

// OpenBroker connects to the broker that the flags or the configuration name.
func (a *App) OpenBroker(ctx context.Context, log *slog.Logger, drain time.Duration) (transport.Transport, error) {
	if a.Config == nil {
		if err := a.Load(); err != nil {
			return nil, err
		}
	}
	_, settings, err := a.Config.Settings()
	if err != nil {
		return nil, err
	}
	t, err := settings.Open(ctx, transport.Environment{Logger: log, DrainTimeout: drain})
	if err != nil {
		return nil, fmt.Errorf("%w; connect to it by %s, or by the section %s of a configuration", err, BrokerFlags[a.Config.Broker], a.Config.Broker)
	}
	return t, nil
}

// OpenTransport connects a relay to the broker, or to both brokers of a migration.
func (a *App) OpenTransport(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger, drain time.Duration) (transport.Transport, error) {
	cfg := *a.Config
	cfg.Postgres.Schema = a.Schema
	return cfg.OpenTransport(ctx, pool, transport.Environment{Logger: log, DrainTimeout: drain})
}

// BrokerName returns the broker that the flags, the configuration or the environment name.
func (a *App) BrokerName() string {
	if a.Config != nil {
		return a.Config.Broker
	}
	return cmp.Or(a.Broker.name, os.Getenv("MILLRACE_BROKER"))
}

// dsnSource returns where the connection string comes from.
func (a *App) dsnSource() string {
	switch {
	case a.Reach.DSN != "":
		return "--dsn"
	case a.Name != "":
		return fmt.Sprintf("the dsn of database %q in the fleet of %s", a.Name, a.File)
	case os.Getenv("MILLRACE_POSTGRES_DSN") != "":
		return "$MILLRACE_POSTGRES_DSN"
	case a.File != "":
		return "postgres.dsn of " + a.File
	case os.Getenv("DATABASE_URL") != "":
		return "$DATABASE_URL"
	}
	return "the connection that the variables $PGHOST, $PGPORT and the like describe"
}

// Drivers are the drivers of all brokers.
var Drivers = []transport.Driver{kafka.Driver, memory.Driver, pubsub.Driver}
