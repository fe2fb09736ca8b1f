package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/tables"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/outbox/schedule"
	"github.com/millrace-go/millrace/pgtx"
)

func componentNames() (names []string) {
	for _, c := range tables.Components {
		names = append(names, c.Name)
	}
	return names
}

func migrateCommand(a *cli.App) *cobra.Command {
	c := a.Database(&cobra.Command{Use: "migrate", Short: "Create, change and drop Millrace's tables", Args: cobra.NoArgs, RunE: cli.NeedsCommand})
	var component string
	var patience time.Duration
	c.PersistentFlags().StringVar(&component, "component", "", "only this component: "+words.Either(componentNames())+" (default: all)")
	check := func(*cobra.Command, []string) error {
		if names := componentNames(); component != "" && !slices.Contains(names, component) {
			return cli.Misuse(fmt.Errorf("--component is %q: want %s", component, words.Either(names)))
		}
		return nil
	}
	waits := func(c *cobra.Command) *cobra.Command {
		c.Flags().DurationVar(&patience, "timeout", time.Minute, "how long to retry while another transaction holds a lock")
		return c
	}
	migrators := func(db pgtx.DB) ([]*pgschema.Migrator, error) {
		return migratorsOf(a, db, component, patience)
	}

	up := &cobra.Command{Use: "up", Short: "Create the tables, or bring them up to date while programs run", Args: cobra.NoArgs, Example: "  millrace migrate up\n  millrace migrate up --config millrace.yaml --timeout 5m"}
	up.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		all, err := migrators(pool)
		if err != nil {
			return err
		}
		for i, m := range all {
			a.Progress.Say(fmt.Sprintf("Migrating %s (%d of %d)", m.Component(), i+1, len(all)))
			if err := m.Up(ctx); err != nil {
				return err
			}
		}
		return migrations(ctx, a, all)
	})

	var to int
	var force bool
	down := &cobra.Command{Use: "down --component COMPONENT --to VERSION", Short: "Go back to an older version of the tables; 0 drops them", Args: cobra.NoArgs, Example: "  millrace migrate down --component claim --to 0"}
	down.Flags().IntVar(&to, "to", -1, "version to go back to")
	down.Flags().BoolVar(&force, "force", false, "even if committed events that are not published yet are lost")
	down.PreRunE = func(c *cobra.Command, args []string) error {
		if component == "" || to < 0 {
			return cli.Misuse(errors.New("want --component and --to: this drops tables"))
		}
		return check(c, args)
	}
	down.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		all, err := migrators(pool)
		if err != nil {
			return err
		}
		if err := all[0].Down(ctx, to, force); err != nil {
			return err
		}
		return migrations(ctx, a, all)
	})

	status := &cobra.Command{Use: "status", Short: "List migrations, applied and pending", Args: cobra.NoArgs, Example: "  millrace migrate status"}
	status.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		all, err := migrators(pool)
		if err != nil {
			return err
		}
		return migrations(ctx, a, all)
	})
	shown := migratePrint(a, &component)
	up.PreRunE, status.PreRunE, shown.PreRunE = check, check, check
	c.AddCommand(a.Prints(cli.OnEachDatabase(waits(up))), a.Prints(waits(down)), a.Prints(cli.OnEachDatabase(status)), shown, grants(a))
	return c
}

// migratorsOf returns the migrators of the component, or of all components.
func migratorsOf(a *cli.App, db pgtx.DB, component string, patience time.Duration) (found []*pgschema.Migrator, err error) {
	for _, l := range tables.Components {
		if component != "" && component != l.Name {
			continue
		}
		m, err := l.In(db, a.Schema)
		if err != nil {
			return nil, cli.Misuse(fmt.Errorf("--schema: %w", err))
		}
		m.Patience, m.Logger = patience, a.Logger()
		found = append(found, m)
	}
	return found, nil
}

func migrations(ctx context.Context, a *cli.App, all []*pgschema.Migrator) error {
	var found []pgschema.Migration
	for _, m := range all {
		of, err := m.Status(ctx)
		if err != nil {
			return err
		}
		found = append(found, of...)
	}
	if a.JSON {
		return a.PrintJSON(found)
	}
	var lines [][]string
	for _, m := range found {
		applied := "pending"
		if m.AppliedAt != nil {
			applied = m.AppliedAt.Format(time.RFC3339)
		}
		if !m.Known {
			applied += ", by a newer program"
		}
		lines = append(lines, []string{m.Component, strconv.Itoa(m.Version), m.Name, applied})
	}
	a.Table("COMPONENT VERSION NAME~ APPLIED", lines)
	return nil
}

func migratePrint(a *cli.App, component *string) *cobra.Command {
	from, to := -1, -1
	c := &cobra.Command{
		Use: "print", Short: "Print the SQL that \"up\" or \"down\" would run, for psql", Args: cobra.NoArgs,
		Long:    "Prints the SQL that \"up\" or \"down\" would run, for psql. With --from it does not connect to a database.",
		Example: "  millrace migrate print --from 0 > millrace.sql",
	}
	c.Flags().IntVar(&from, "from", -1, "version to start from (default: the database's)")
	c.Flags().IntVar(&to, "to", -1, "version to end at (default: the newest)")
	show := func(all []*pgschema.Migrator, at func(*pgschema.Migrator) (int, int, error)) error {
		for _, m := range all {
			now, newest, err := at(m)
			if err != nil {
				return err
			}
			if to >= 0 {
				newest = to
			}
			sql, err := m.SQL(now, newest)
			if err != nil {
				return cli.Misuse(err)
			}
			fmt.Fprint(a.Stdout, sql)
		}
		return nil
	}
	ask := a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		all, err := migratorsOf(a, pool, *component, 0)
		if err != nil {
			return err
		}
		return show(all, func(m *pgschema.Migrator) (now, newest int, err error) {
			found, err := m.Status(ctx)
			for _, f := range found {
				if f.AppliedAt != nil {
					now = f.Version
				}
			}
			return now, max(m.Newest(), now), err
		})
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		if from < 0 {
			return ask(c, args)
		}
		all, err := migratorsOf(a, nil, *component, 0)
		if err != nil {
			return err
		}
		return show(all, func(m *pgschema.Migrator) (int, int, error) { return from, m.Newest(), nil })
	}
	return c
}

func grants(a *cli.App) *cobra.Command {
	var roles outboxadmin.GrantRoles
	var consumer, service, scheduler string
	var printOnly bool
	c := &cobra.Command{
		Use: "grants", Short: "Grant roles the privileges that they need, and no more", Args: cobra.NoArgs,
		Long: "Grants roles the privileges that they need, and no more. The roles must exist. Everything else (migrations, the number of\n" +
			"shards, \"outbox check --fix\", purges) is for the owner of the tables. Run it again after a migration.",
		Example: "  millrace migrate grants --writer shop --relay relay --consumer shop --operator oncall\n  millrace migrate grants --http shop --print",
	}
	c.Flags().StringVar(&roles.Writer, "writer", "", "role of services that publish events")
	c.Flags().StringVar(&roles.Relay, "relay", "", "role of relays")
	c.Flags().StringVar(&roles.Operator, "operator", "", "role of operators, who inspect, retry and discard failed events, resolve effects in doubt, and forget stored answers and schedules")
	c.Flags().StringVar(&consumer, "consumer", "", "role of services that claim events and record effects; if they publish, also name it as --writer")
	c.Flags().StringVar(&service, "http", "", "role of services that store answers by Idempotency-Key; if they publish, also name it as --writer")
	c.Flags().StringVar(&scheduler, "scheduler", "", "role of services that have schedules; also name it as --writer")
	c.Flags().BoolVar(&printOnly, "print", false, "print the SQL and run nothing")
	var sql string
	apply := a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		return pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return fmt.Errorf("%w; \"millrace migrate up\" creates the tables, and only their owner may grant", err)
			}
			return nil
		})
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		if roles == (outboxadmin.GrantRoles{}) && consumer == "" && service == "" && scheduler == "" {
			return cli.Misuse(errors.New("want at least one of --writer, --relay, --operator, --consumer, --http and --scheduler"))
		}
		of, err := outboxadmin.Grants(a.Schema, roles)
		if err != nil {
			return cli.Misuse(fmt.Errorf("--schema: %w", err))
		}
		claims, err := claim.Grants(a.Schema, claim.GrantRoles{Consumer: consumer, Operator: roles.Operator})
		if err != nil {
			return cli.Misuse(fmt.Errorf("--schema: %w", err))
		}
		answers, err := idempotencykey.Grants(a.Schema, idempotencykey.GrantRoles{HTTP: service, Operator: roles.Operator})
		if err != nil {
			return cli.Misuse(fmt.Errorf("--schema: %w", err))
		}
		effects, err := effect.Grants(a.Schema, effect.GrantRoles{Consumer: consumer, Operator: roles.Operator})
		if err != nil {
			return cli.Misuse(fmt.Errorf("--schema: %w", err))
		}
		schedules, err := schedule.Grants(a.Schema, schedule.GrantRoles{Scheduler: scheduler, Operator: roles.Operator})
		if err != nil {
			return cli.Misuse(fmt.Errorf("--schema: %w", err))
		}
		if sql = of + claims + effects + answers + schedules; printOnly {
			fmt.Fprint(a.Stdout, sql)
			return nil
		}
		return apply(c, args)
	}
	return c
}
