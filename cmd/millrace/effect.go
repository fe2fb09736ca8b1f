package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/effect"
)

func effectCommand(a *cli.App) *cobra.Command {
	c := a.Database(&cobra.Command{
		Use: "effect", Short: "List and resolve effects in doubt", Args: cobra.NoArgs, RunE: cli.NeedsCommand,
		Long: "Lists and resolves effects outside the database. An effect is in doubt if the process died, or got no answer, between the\n" +
			"call of a provider and its record. If the service cannot ask the provider, a person asks it and resolves the effect.",
	})
	c.AddCommand(effectList(a), effectResolve(a))
	return c
}

func effectList(a *cli.App) *cobra.Command {
	var l effect.Listing
	var response bool
	c := &cobra.Command{Use: "list", Short: "List effects in doubt, and those that probably happened twice", Args: cobra.NoArgs, Example: "  millrace effect list\n  millrace effect list --event 0198c0de-0000-7000-8000-000000003f2a --response"}
	c.Flags().StringVar(&l.State, "state", "open", "only effects in this state: open (doubt or conflict), doubt, conflict, running, pending, done, not_done or all")
	cli.OneOf(c, "state", effect.States...)
	cli.LimitVar(c, &l.Limit)
	c.Flags().StringVar(&l.EventID, "event", "", "only effects that a handler of the event with this ID called first; without --state, in all states")
	c.Flags().StringVar(&l.Mentions, "mentions", "", "only effects whose keys contain this; reads all effects")
	c.Flags().BoolVar(&response, "response", false, "show responses, too")
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		if c.Flags().Changed("event") && l.EventID == "" {
			return cli.Misuse(errors.New("--event is empty: want an event's ID"))
		}
		if l.EventID != "" && !c.Flags().Changed("state") {
			l.State = "all"
		}
		if !slices.Contains(effect.States, l.State) {
			return cli.Misuse(fmt.Errorf("--state is %q: want %s", l.State, words.Either(effect.States)))
		}
		return cli.CheckLimit(l.Limit)
	}
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		found, err := effect.List(ctx, pool, a.Schema, l)
		if err != nil {
			return err
		}
		if !response {
			for i := range found {
				found[i].Response = nil
			}
		}
		if a.JSON {
			return a.PrintJSON(append([]effect.Entry{}, found...))
		}
		if len(found) == 0 {
			a.Say("No such effects.")
			return nil
		}
		columns := "KEY STATE~ CALLS? CALLED IDEMPOTENCY-KEY? REASON~"
		if response {
			columns += " RESPONSE~"
		}
		var rows [][]string
		for _, e := range found {
			state := e.State
			if e.Conflicts > 0 {
				state += ", in conflict"
			}
			row := []string{words.OneLine(e.Key), state, strconv.Itoa(e.Calls), words.Duration(time.Since(e.CalledAt)) + " ago", e.IdempotencyKey, words.OneLine(e.Reason)}
			if response {
				row = append(row, words.OneLine(string(e.Response)))
			}
			rows = append(rows, row)
		}
		a.Table(columns, rows)
		return nil
	})
	return a.Prints(c)
}

func effectResolve(a *cli.App) *cobra.Command {
	var d effect.Resolution
	var notDone bool
	var response string
	c := &cobra.Command{
		Use: "resolve KEY {--done [--response JSON] | --not-done}", ValidArgsFunction: cobra.NoFileCompletions, Short: "Resolve an effect in doubt: it happened, or it did not", Args: cli.Argument,
		Long: "Resolves an effect in doubt: it happened, and is not called again (--done), or it did not happen and cannot happen any\n" +
			"more, and may be called again (--not-done). Ask the provider first, by the idempotency key. The event is handled when it\n" +
			"is redelivered. An effect in conflict is taken off the list by --done. Decisions are kept in the table effect_resolution.",
		Example: "  millrace effect resolve labour/sms/0198c0de-0000-7000-8000-000000003f2a --done --note \"seen at the provider\"\n  millrace effect resolve shop/charge:1 --done --response '\"ch_1\"'\n  millrace effect resolve shop/charge:2 --not-done",
	}
	c.Flags().BoolVar(&d.Done, "done", false, "the effect happened")
	c.Flags().BoolVar(&notDone, "not-done", false, "the effect did not happen, and cannot happen any more")
	c.Flags().StringVar(&response, "response", "", "the provider's answer, as the JSON that the program would have recorded")
	c.Flags().StringVar(&d.By, "by", osUser(), "who decides")
	c.Flags().StringVar(&d.Note, "note", "", "why")
	connected := a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		if err := effect.Resolve(ctx, pool, a.Schema, args[0], d); err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(map[string]string{"settled": args[0]})
		}
		a.Say("Effect %s was resolved.", words.OneLine(args[0]))
		return nil
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case d.Done == notDone:
			return cli.Misuse(errors.New("want either --done or --not-done"))
		case response != "" && notDone:
			return cli.Misuse(errors.New("--response needs --done"))
		case response != "" && !json.Valid([]byte(response)):
			return cli.Misuse(fmt.Errorf("--response is %s: want JSON, such as a text in double quotes", response))
		case d.By == "":
			return cli.Misuse(errors.New("--by is empty: want the name of who decides"))
		}
		if response != "" {
			d.Response = json.RawMessage(response)
		}
		return connected(c, args)
	}
	return a.Prints(c)
}

// osUser returns the name of the user who runs the command.
func osUser() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return os.Getenv("USER")
}
