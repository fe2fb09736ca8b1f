package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/schedule"
)

func scheduleCommand(a *cli.App) *cobra.Command {
	c := a.Database(&cobra.Command{
		Use: "schedule", Short: "List schedules, and forget removed ones", Args: cobra.NoArgs, RunE: cli.NeedsCommand,
		Long: "Lists the schedules of services, with their last and next times, and forgets schedules that were removed from a service.",
	})
	c.AddCommand(scheduleList(a), scheduleForget(a))
	return c
}

func scheduleList(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List schedules with their last and next times", Args: cobra.NoArgs,
		Long: "Lists the schedules of all services. A schedule whose next time has passed is overdue: no process of its service runs, or it\n" +
			"fails, which its log says, or the schedule was removed.",
		Example: "  millrace schedule list",
	}
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		found, err := schedule.List(ctx, pool, a.Schema)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(append([]schedule.Entry{}, found...))
		}
		if len(found) == 0 {
			a.Say("No schedules.")
			return nil
		}
		var rows [][]string
		for _, e := range found {
			rows = append(rows, []string{e.Service, e.Name, e.Expression, e.TimeZone, utc(e.FiredAt), nextTime(e)})
		}
		a.Table("SERVICE NAME EXPRESSION~ ZONE LAST NEXT", rows)
		return nil
	})
	return a.Prints(c)
}

func utc(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// nextTime returns when the schedule fires next, or how long it is overdue.
func nextTime(e schedule.Entry) string {
	if e.Overdue() > 0 {
		return utc(e.Next) + ", overdue by " + words.Duration(e.Overdue())
	}
	return utc(e.Next)
}

func scheduleForget(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use: "forget SERVICE/NAME", Short: "Forget a schedule that was removed from its service", Args: cli.Argument, ValidArgsFunction: cobra.NoFileCompletions,
		Long: "Deletes what is stored about a schedule that was removed from its service. A schedule of that name which is added later begins\n" +
			"then, and does not fire for times before. A service that still has the schedule stores it again, and goes on.",
		Example: "  millrace schedule forget billing/nightly-report",
	}
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		service, name, both := strings.Cut(args[0], "/")
		if !both {
			return cli.Misuse(errors.New("want the schedule as SERVICE/NAME, such as billing/nightly-report"))
		}
		if err := schedule.Forget(ctx, pool, a.Schema, service, name); err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(map[string]string{"forgotten": args[0]})
		}
		a.Say("The schedule %s was forgotten.", words.OneLine(args[0]))
		return nil
	})
	return a.Prints(c)
}
