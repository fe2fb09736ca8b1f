package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/brokermigration"
	"github.com/millrace-go/millrace/transport"
)

func migrationCommand(a *cli.App) *cobra.Command {
	c := a.Database(&cobra.Command{
		Use: "migration", Short: "Take a fleet from one broker to another", Args: cobra.NoArgs, RunE: cli.NeedsCommand,
		Long: "Takes a fleet from one broker to another, in phases: its processes read both brokers, and all publish to the one that the\n" +
			"database names. The configuration (--config) names the brokers, as broker and migration.to. The phases are consume, drain,\n" +
			"publish and cut; and return on the way back.",
	})
	var others []string
	add := func(name, short, long string, run func(context.Context, brokermigration.Query) (brokermigration.Status, error), flags func(*cobra.Command)) {
		sub := &cobra.Command{Use: name, Short: short, Long: long, Example: "  millrace migration " + name + " --config millrace.yaml", Args: cobra.NoArgs}
		sub.Flags().StringArrayVar(&others, "consumers", nil, "configuration file of a service with another database that consumes the same topics; repeat it for each")
		if flags != nil {
			flags(sub)
		}
		sub.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
			return migrating(ctx, a, pool, others, run)
		})
		c.AddCommand(a.Prints(sub))
	}
	var actor string
	byActor := func(c *cobra.Command) {
		c.Flags().StringVar(&actor, "actor", cli.Somebody(), "who does it, for the audit log")
	}
	add("status", "Show the phase, and whether the next step is safe",
		"Shows the phase, the processes that take part, and whether the step to the next phase and the one back are safe; if not, what\n"+
			"they wait for. It changes nothing.", brokermigration.Inspect, nil)
	add("next", "Go to the next phase, if that is safe",
		"Goes to the next phase. If that is not safe, it changes nothing, says why, and exits with 1: try again.",
		func(ctx context.Context, q brokermigration.Query) (brokermigration.Status, error) {
			return brokermigration.Step(ctx, q, false, actor)
		}, byActor)
	add("back", "Go one phase back, if that is safe",
		"Goes one phase back. If that is not safe, it changes nothing, says why, and exits with 1: try again.",
		func(ctx context.Context, q brokermigration.Query) (brokermigration.Status, error) {
			return brokermigration.Step(ctx, q, true, actor)
		}, byActor)
	return c
}

// migrating runs a step of the migration that the configuration names, and prints the resulting status.
func migrating(ctx context.Context, a *cli.App, pool *pgxpool.Pool, others []string, run func(context.Context, brokermigration.Query) (brokermigration.Status, error)) (err error) {
	if a.Config == nil || a.Config.Migration.To == "" {
		return cli.Misuse(errors.New("no migration is configured: name by --config a configuration with broker and migration.to"))
	}
	brokers, err := a.Config.OpenBrokers(ctx, transport.Environment{Logger: a.Logger()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, brokers.From.Close(), brokers.To.Close()) }()
	q := brokermigration.Query{Pool: pool, Schema: a.Schema, From: brokers.From, To: brokers.To, Quiet: a.Config.Migration.Quiet}
	for _, file := range others {
		cfg, err := framework.Load(file, cli.Drivers...)
		if err != nil {
			return err
		}
		other, err := pgxpool.New(ctx, cfg.Postgres.DSN)
		if err != nil {
			return fmt.Errorf("postgres.dsn of %s: %w", file, err)
		}
		defer other.Close()
		q.Others = append(q.Others, brokermigration.Database{Pool: other, Schema: cfg.Postgres.Schema})
	}
	before, failed := run(ctx, q)
	if failed != nil && !errors.Is(failed, brokermigration.ErrBlocked) {
		return failed
	}
	s := before
	if failed == nil {
		if s, err = brokermigration.Inspect(ctx, q); err != nil {
			return err
		}
	}
	if a.JSON {
		err = a.PrintJSON(s)
	} else {
		printMigration(a, s)
	}
	if err == nil && failed != nil {
		err = cli.ExitStatus(cli.ExitFailed)
	}
	return err
}

func printMigration(a *cli.App, s brokermigration.Status) {
	a.Say("The events go from %s to %s. Phase: %s.", s.From, s.To, s.Phase)
	var rows [][]string
	for _, p := range s.Processes {
		known := string(s.Phase)
		if p.Epoch < s.Epoch {
			known = "an earlier one"
		}
		rows = append(rows, []string{words.OneLine(p.Service), words.OneLine(p.Name), known, strconv.Itoa(len(p.Consumers))})
	}
	if len(rows) > 0 {
		a.Table("SERVICE PROCESS PHASE CONSUMERS>", rows)
	}
	for _, way := range []struct {
		command string
		to      *brokermigration.Way
	}{{"next", s.Next}, {"back", s.Back}} {
		switch {
		case way.to == nil:
		case len(way.to.Blocked) == 0:
			a.Say("Safe: \"millrace migration %s\", to phase %s.", way.command, way.to.Phase)
		default:
			a.Say("Not safe yet: \"millrace migration %s\", to phase %s:", way.command, way.to.Phase)
			for _, why := range way.to.Blocked {
				a.Say("  - %s", words.OneLine(why))
			}
		}
	}
}
