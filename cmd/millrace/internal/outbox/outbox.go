// Package outbox implements the command "outbox": waiting, failed and published events, and operators' settings for topics.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// Command returns "outbox" with its subcommands.
func Command(a *cli.App) *cobra.Command {
	c := a.Database(&cobra.Command{Use: "outbox", Short: "Show, retry, discard and replay events; pause and redirect topics", Args: cobra.NoArgs, RunE: cli.NeedsCommand})
	c.AddCommand(statusCommand(a), listCommand(a), retryCommand(a), discardCommand(a), topicCommand(a), replayCommand(a), stopCommand(a), auditCommand(a), checkCommand(a), shardsCommand(a), purgeCommand(a), cleanCommand(a))
	return c
}

func checkCommand(a *cli.App) *cobra.Command {
	var fix bool
	c := &cobra.Command{
		Use: "check", Short: "Check the outbox after a restore or a change by hand", Args: cobra.NoArgs,
		Long: "Checks the outbox after a restore or a change by hand: for sequences below existing rows, rows of shards that do not\n" +
			"exist, and an inconsistent layout. Exits with 1 if it found a problem that it did not fix.",
		Example: "  millrace outbox check\n  millrace outbox check --fix",
	}
	c.Flags().BoolVar(&fix, "fix", false, "advance sequences that are too low; writers wait for a moment")
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		found, err := outboxadmin.Check(ctx, pool, a.Schema, fix)
		if err != nil {
			return err
		}
		wrong := false
		for _, f := range found {
			wrong = wrong || !f.Fixed && !f.Note
		}
		if a.JSON {
			err = a.PrintJSON(append([]outboxadmin.Finding{}, found...))
		} else {
			for _, f := range found {
				kind, paint := "wrong", a.Terminal.Red
				if f.Fixed {
					kind, paint = "fixed", a.Terminal.Green
				} else if f.Note {
					kind, paint = "note", a.Terminal.Dim
				}
				a.Terminal.Paragraph(a.Stdout, len("wrong: "), kind+":", paint, f.Text)
			}
			if !wrong {
				a.Say("%s", a.Terminal.Green("The outbox is in order."))
			}
		}
		if err == nil && wrong {
			return cli.ExitStatus(cli.ExitFailed)
		}
		return err
	})
	return a.Prints(c)
}

func shardsCommand(a *cli.App) *cobra.Command {
	var timeout time.Duration
	c := &cobra.Command{
		Use: "shards [N]", Short: "Print the number of shards, or change it", Args: cli.Argument,
		Long: "Prints the number of shards, or changes it to N, 1 to 256, while programs run. A relay must run, because the outbox must\n" +
			"drain first. Until it is empty, producers get the error SQLSTATE 55006 and should retry their transactions. If the outbox\n" +
			"does not drain in time, or the command is interrupted before, the number stays as it was.",
		Example: "  millrace outbox shards\n  millrace outbox shards 64 --timeout 2m",
	}
	c.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long producers may be refused while the outbox drains")
	var wanted int
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if len(args) == 0 {
			return nil
		}
		if wanted, err = strconv.Atoi(args[0]); err != nil || wanted < 1 || wanted > 256 {
			return cli.Misuse(fmt.Errorf("the number of shards is %q: want 1 to 256", args[0]))
		}
		return nil
	}
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		if wanted > 0 {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			if err := outboxadmin.ChangeShards(ctx, pool, a.Schema, wanted, func(text string) { fmt.Fprintln(a.Stderr, text) }); err != nil {
				return err
			}
		}
		n, err := outboxadmin.Shards(ctx, pool, a.Schema)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(map[string]int{"shards": n})
		}
		a.Say("%s", words.Count(n, "shard"))
		return nil
	})
	return a.Prints(c)
}

func purgeCommand(a *cli.App) *cobra.Command {
	var olderThan time.Duration
	c := &cobra.Command{Use: "purge --older-than AGE", Short: "Delete discarded events for good", Args: cobra.NoArgs, Example: "  millrace outbox purge --older-than 30d"}
	cli.AgeVar(c, &olderThan, "older-than", "delete those that failed longer ago than this, such as 30d or 12h")
	c.PreRunE = func(*cobra.Command, []string) error { return cli.CheckAge("older-than", olderThan) }
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		n, err := outboxadmin.Purge(ctx, pool, a.Schema, olderThan)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(map[string]int64{"deleted": n})
		}
		a.Say("%s %s deleted.", words.Count(n, "discarded event"), words.Pick(n, "was", "were"))
		return nil
	})
	return a.Prints(c)
}

func cleanCommand(a *cli.App) *cobra.Command {
	var olderThan, timeout time.Duration
	var slot string
	c := &cobra.Command{
		Use: "clean --slot SLOT --older-than AGE", Short: "Delete events that Debezium has published", Args: cobra.NoArgs,
		Long: "Deletes events that Debezium has published in place of a relay. It deletes an event only after Debezium has confirmed it to\n" +
			"its replication slot. If the slot is missing or lost, it deletes nothing, because Debezium must read the rows again. Do not\n" +
			"run it where a relay publishes.",
		Example: "  millrace outbox clean --slot millrace_outbox --older-than 1d",
	}
	c.Flags().StringVar(&slot, "slot", "", "Debezium's replication slot, slot.name in its configuration")
	cli.AgeVar(c, &olderThan, "older-than", "delete those that were written longer ago than this, such as 1d or 12h")
	c.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for Debezium's confirmation, and to delete")
	c.PreRunE = func(*cobra.Command, []string) error {
		if slot == "" {
			return cli.Misuse(errors.New("--slot is missing: want slot.name of Debezium's configuration"))
		}
		return cli.CheckAge("older-than", olderThan)
	}
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		n, err := outboxadmin.Clean(ctx, pool, a.Schema, slot, olderThan)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(map[string]int64{"deleted": n})
		}
		a.Say("%s %s deleted.", words.Count(n, "event"), words.Pick(n, "was", "were"))
		return nil
	})
	return a.Prints(c)
}
