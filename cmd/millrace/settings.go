package main

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
)

// resolve finds out which database is meant: flags win over a configuration, and that wins over the environment, which is
// part of the configuration too.
func (a *app) resolve(c *cobra.Command) error {
	if c.Flags().Lookup("schema") == nil {
		return nil
	}
	if err := a.broker.check(); err != nil {
		return err
	}
	a.reach = reach.Reach{Config: a.file, DSN: a.dsn, Schema: a.schema}
	if a.file != "" {
		if err := a.load(); err != nil {
			return err
		}
	}
	if err := a.selectDatabase(c.Context()); err != nil {
		return err
	}
	a.reach.Database = a.name
	if a.cfg != nil {
		a.dsn, a.schema = cmp.Or(a.dsn, a.cfg.Postgres.DSN), cmp.Or(a.schema, a.cfg.Postgres.Schema)
	}
	schema, err := pgschema.Validate(cmp.Or(a.schema, os.Getenv("MILLRACE_POSTGRES_SCHEMA")))
	if err != nil {
		return usageError{fmt.Errorf("--schema: %w", err)}
	}
	a.schema = schema
	return nil
}

// load reads the configuration, or makes one of the flags alone.
func (a *app) load() error {
	environ := os.Environ()
	if a.file == "" { // what a configuration must have, and a command does not care for
		environ = append([]string{"MILLRACE_SERVICE=millrace", "MILLRACE_KAFKA_CLIENT_ID=millrace"}, environ...)
	}
	for variable, flag := range map[string]string{"MILLRACE_POSTGRES_DSN": a.dsn, "MILLRACE_POSTGRES_SCHEMA": a.schema} {
		if flag != "" {
			environ = append(environ, variable+"="+flag)
		}
	}
	cfg, err := framework.LoadEnv(a.file, append(environ, a.broker.environ()...), drivers...)
	var wrong *framework.ConfigError
	switch {
	case errors.As(err, &wrong) && a.file == "":
		return usageError{fmt.Errorf("%s; connect to %s by %s", a.broker.asFlags(strings.Join(wrong.Problems, "; ")), a.brokerName(), brokerFlags[a.brokerName()])}
	case errors.As(err, &wrong):
		return errors.New(a.broker.asFlags(strings.Join(wrong.Problems, "\n")))
	}
	a.cfg = &cfg
	return err
}

// openBroker connects to the broker that the flags or the configuration name.
func (a *app) openBroker(ctx context.Context, log *slog.Logger, drain time.Duration) (transport.Transport, error) {
	if a.cfg == nil {
		if err := a.load(); err != nil {
			return nil, err
		}
	}
	_, settings, err := a.cfg.Settings()
	if err != nil {
		return nil, err
	}
	t, err := settings.Open(ctx, transport.Environment{Logger: log, DrainTimeout: drain})
	if err != nil {
		return nil, fmt.Errorf("%w; connect to it by %s, or by the section %s of a configuration", err, brokerFlags[a.cfg.Broker], a.cfg.Broker)
	}
	return t, nil
}

// openTransport connects a relay to the broker, or to both of a migration.
func (a *app) openTransport(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger, drain time.Duration) (transport.Transport, error) {
	cfg := *a.cfg
	cfg.Postgres.Schema = a.schema
	t, err := cfg.OpenTransport(ctx, pool, transport.Environment{Logger: log, DrainTimeout: drain})
	if err != nil {
		return nil, fmt.Errorf("%w; connect to it by %s, or by the section %s of a configuration", err, brokerFlags[a.cfg.Broker], a.cfg.Broker)
	}
	return t, nil
}

// brokerName is the broker that the flags, the configuration or the environment name.
func (a *app) brokerName() string {
	if a.cfg != nil {
		return a.cfg.Broker
	}
	return cmp.Or(a.broker.name, os.Getenv("MILLRACE_BROKER"))
}

// dsnSource is where the connection string comes from.
func (a *app) dsnSource() string {
	switch {
	case a.reach.DSN != "":
		return "--dsn"
	case a.name != "":
		return fmt.Sprintf("the dsn of database %q in the fleet of %s", a.name, a.file)
	case a.file != "":
		return "postgres.dsn of " + a.file
	case os.Getenv("MILLRACE_POSTGRES_DSN") != "":
		return "$MILLRACE_POSTGRES_DSN"
	case os.Getenv("DATABASE_URL") != "":
		return "$DATABASE_URL"
	}
	return "the connection that the variables $PGHOST, $PGPORT and the like describe"
}
