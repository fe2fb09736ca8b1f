package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

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
		sub.Flags().StringArrayVar(&others, "consumers", nil, "configuration file, with postgres.dsn, of a service with another database that consumes the same topics; repeat it for each")
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
		"Goes to the next phase. If that is not safe, it changes nothing, says why, and exits with 1: try again. If the connection to the\n"+
			"database breaks, it says whether the step may have been made: then look at the status before you try again. In a script, ask\n"+
			"the status for the phase before each try: a try after a step that was made makes the next step, too.",
		func(ctx context.Context, q brokermigration.Query) (brokermigration.Status, error) {
			return step(ctx, a, q, false, actor)
		}, byActor)
	add("back", "Go one phase back, if that is safe",
		"Goes one phase back. If that is not safe, it changes nothing, says why, and exits with 1: try again. If the connection to the\n"+
			"database breaks, it says whether the step may have been made: then look at the status before you try again. In a script, ask\n"+
			"the status for the phase before each try: a try after a step that was made makes the next step, too.",
		func(ctx context.Context, q brokermigration.Query) (brokermigration.Status, error) {
			return step(ctx, a, q, true, actor)
		}, byActor)
	return c
}

// step goes one phase on, or back, and returns the status after it. A step that was made is no failure, even if it cannot be judged
// what comes next: who tries again makes another step.
func step(ctx context.Context, a *cli.App, q brokermigration.Query, goBack bool, actor string) (brokermigration.Status, error) {
	before, err := brokermigration.Step(ctx, q, goBack, actor)
	if err != nil {
		return before, err
	}
	after, err := brokermigration.Inspect(ctx, q)
	if err != nil {
		a.Logger().WarnContext(ctx, "the step was made, but the processes and the brokers could not be asked about the next one", "error", err)
		made := before.Next
		if goBack {
			made = before.Back
		}
		return brokermigration.Status{From: before.From, To: before.To, Phase: made.Phase, Epoch: before.Epoch + 1}, nil
	}
	return after, nil
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
		other, err := consumersOf(ctx, file, brokermigration.Database{Pool: pool, Schema: a.Schema})
		if err != nil {
			return err
		}
		defer other.Pool.Close()
		q.Others = append(q.Others, other)
	}
	s, failed := run(ctx, q)
	if failed != nil && !errors.Is(failed, brokermigration.ErrBlocked) {
		return failed
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

// consumersOf connects to the database that the configuration file of another service names. This process's MILLRACE_* and
// DATABASE_URL do not count, because they are those of the own service.
func consumersOf(ctx context.Context, file string, own brokermigration.Database) (other brokermigration.Database, err error) {
	environ := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "MILLRACE_") || strings.HasPrefix(entry, "DATABASE_URL=")
	})
	cfg, err := framework.LoadEnv(file, environ, cli.Drivers...)
	if err != nil {
		return other, err
	}
	if cfg.Postgres.DSN == "" {
		return other, cli.Misuse(fmt.Errorf("--consumers is %s, which has no postgres.dsn: want the database of the other service there", file))
	}
	other.Schema = cfg.Postgres.Schema
	if other.Pool, err = pgxpool.New(ctx, cfg.Postgres.DSN); err != nil {
		return other, fmt.Errorf("postgres.dsn of %s: %w", file, err)
	}
	a, b := own.Pool.Config().ConnConfig, other.Pool.Config().ConnConfig
	if own.Schema == other.Schema && a.Host == b.Host && a.Port == b.Port && a.Database == b.Database {
		other.Pool.Close()
		return other, cli.Misuse(fmt.Errorf("--consumers is %s, whose database and schema are those of the migration: want the file of a service that has another database", file))
	}
	return other, nil
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
