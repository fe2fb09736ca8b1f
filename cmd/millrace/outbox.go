package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/outbox"
)

func (a *app) outbox() *cobra.Command {
	c := a.database(&cobra.Command{Use: "outbox", Short: "Look at the outbox and mend it", Args: cobra.NoArgs, RunE: needsCommand})
	c.AddCommand(a.outboxStatus(), a.outboxList(), a.outboxRetry(), a.outboxDiscard(), a.outboxCheck(), a.outboxShards(), a.outboxPurge())
	return c
}

func (a *app) outboxCheck() *cobra.Command {
	var fix bool
	c := &cobra.Command{
		Use: "check", Short: "Look for what a restore or a change by hand may have left", Args: cobra.NoArgs,
		Long: "Looks for what a restore or a change by hand may have left: sequences below existing rows, rows of shards that do not\n" +
			"exist, a layout that does not fit. Exits with 1 when something is wrong and was not mended.",
	}
	c.Flags().BoolVar(&fix, "fix", false, "set sequences forward; writers wait a moment")
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		found, err := outbox.Examine(ctx, pool, a.schema, fix)
		if err != nil {
			return err
		}
		wrong := false
		for _, f := range found {
			wrong = wrong || !f.Fixed && !f.Note
		}
		if a.json {
			err = a.printJSON(append([]outbox.Finding{}, found...))
		} else {
			for _, f := range found {
				kind := "wrong"
				if f.Fixed {
					kind = "fixed"
				} else if f.Note {
					kind = "note"
				}
				fmt.Fprintf(a.stdout, "%s: %s\n", kind, f.Text)
			}
			if !wrong {
				fmt.Fprintln(a.stdout, "the outbox is in order")
			}
		}
		if err == nil && wrong {
			return exitStatus(exitFailed)
		}
		return err
	})
	return a.prints(c)
}

func (a *app) outboxShards() *cobra.Command {
	var timeout time.Duration
	c := &cobra.Command{
		Use: "shards [N]", Short: "Print the number of shards, or change it", Args: cobra.MaximumNArgs(1),
		Long: "Prints the number of shards, or changes it beside running programs, 1 to 256. Relays must run, because the outbox has to\n" +
			"drain. Until it has, producers are refused with SQLSTATE 55006: they are to repeat their transactions. When it fails,\n" +
			"or is interrupted, the number stays and producers go on. No program of version 1 of the outbox may publish any more.",
	}
	c.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long producers may be refused while the outbox drains")
	var wanted int
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if len(args) == 0 {
			return nil
		}
		if wanted, err = strconv.Atoi(args[0]); err != nil || wanted < 1 || wanted > 256 {
			return usageError{fmt.Errorf("the number of shards is %q: want 1 to 256", args[0])}
		}
		return nil
	}
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		if wanted > 0 {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			if err := outbox.ChangeShards(ctx, pool, a.schema, wanted, func(text string) { fmt.Fprintln(a.stderr, text) }); err != nil {
				return err
			}
		}
		n, err := outbox.Shards(ctx, pool, a.schema)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(map[string]int{"shards": n})
		}
		fmt.Fprintf(a.stdout, "%d shards\n", n)
		return nil
	})
	return a.prints(c)
}

func (a *app) outboxPurge() *cobra.Command {
	var olderThan time.Duration
	c := &cobra.Command{Use: "purge --older-than 30d", Short: "Delete dead events", Args: cobra.NoArgs}
	ageVar(c, &olderThan, "older-than", "how long ago they failed, such as 30d or 12h")
	c.PreRunE = func(*cobra.Command, []string) error { return checkAge("older-than", olderThan) }
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		n, err := outbox.Purge(ctx, pool, a.schema, olderThan)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(map[string]int64{"deleted": n})
		}
		fmt.Fprintf(a.stdout, "%d dead events deleted\n", n)
		return nil
	})
	return a.prints(c)
}
