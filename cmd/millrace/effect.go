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
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/middleware/effect"
)

func (a *app) effect() *cobra.Command {
	c := a.database(&cobra.Command{
		Use: "effect", Short: "Effects outside the database: those in doubt, and decisions about them", Args: cobra.NoArgs, RunE: needsCommand,
		Long: "Effects outside the database. One is in doubt when a process died, or lost its answer, between the call of a provider and\nits record. " +
			"Where the provider cannot be asked by the program, a person asks it, and decides.",
	})
	c.AddCommand(a.effectList(), a.effectResolve())
	return c
}

func (a *app) effectList() *cobra.Command {
	var l effect.Listing
	var response bool
	c := &cobra.Command{Use: "list", Short: "Effects in doubt, and those that probably happened twice", Args: cobra.NoArgs}
	c.Flags().StringVar(&l.State, "state", "open", "open (doubt or conflict), doubt, conflict, running, done, not_done or all")
	oneOf(c, "state", effect.States...)
	c.Flags().IntVar(&l.Limit, "limit", 100, "how many")
	c.Flags().StringVar(&l.Mentions, "mentions", "", "only those whose keys contain this, such as an event's ID")
	c.Flags().BoolVar(&response, "response", false, "show responses")
	c.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains(effect.States, l.State) {
			return usageError{fmt.Errorf("--state is %q: want one of %s", l.State, strings.Join(effect.States, ", "))}
		}
		return checkLimit(l.Limit)
	}
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		found, err := effect.List(ctx, pool, a.schema, l)
		if err != nil {
			return err
		}
		if !response {
			for i := range found {
				found[i].Response = nil
			}
		}
		if a.json {
			return a.printJSON(append([]effect.Entry{}, found...))
		}
		head := "KEY STATE CALLS CALLED IDEMPOTENCY-KEY REASON"
		if response {
			head += " RESPONSE"
		}
		var lines [][]string
		for _, e := range found {
			state := e.State
			if e.Conflicts > 0 {
				state += ", in conflict"
			}
			line := []string{oneLine(e.Key), state, strconv.Itoa(e.Calls), e.CalledAt.UTC().Format(time.RFC3339), e.IdempotencyKey, oneLine(e.Reason)}
			if response {
				line = append(line, oneLine(string(e.Response)))
			}
			lines = append(lines, line)
		}
		a.table(head, lines)
		return nil
	})
	return a.prints(c)
}

func (a *app) effectResolve() *cobra.Command {
	var d effect.Resolution
	var notDone bool
	var response string
	c := &cobra.Command{
		Use: "resolve KEY {--done [--response JSON] | --not-done}", ValidArgsFunction: cobra.NoFileCompletions, Short: "Decide about an effect in doubt", Args: cobra.ExactArgs(1),
		Long: "Decides about an effect in doubt: it happened (--done), and will not be called again, or it did not and will not\n(--not-done), and may be. " +
			"Ask the provider first, by the idempotency key. Its event goes on when it comes back.\nFor one in conflict --done takes it off the list. The decision is kept in the table effect_resolution.",
	}
	c.Flags().BoolVar(&d.Done, "done", false, "it happened")
	c.Flags().BoolVar(&notDone, "not-done", false, "it did not happen, and cannot happen any more")
	c.Flags().StringVar(&response, "response", "", "what the provider answered, as the JSON that the program would have recorded")
	c.Flags().StringVar(&d.By, "by", osUser(), "who decides")
	c.Flags().StringVar(&d.Note, "note", "", "why")
	connected := a.connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		if err := effect.Resolve(ctx, pool, a.schema, args[0], d); err != nil {
			return err
		}
		if a.json {
			return a.printJSON(map[string]string{"settled": args[0]})
		}
		fmt.Fprintf(a.stdout, "%s is settled\n", oneLine(args[0]))
		return nil
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case d.Done == notDone:
			return usageError{errors.New("want either --done or --not-done")}
		case response != "" && notDone:
			return usageError{errors.New("--response is for --done")}
		case response != "" && !json.Valid([]byte(response)):
			return usageError{fmt.Errorf("--response is %s: want JSON, a text in double quotes", response)}
		case d.By == "":
			return usageError{errors.New("--by is missing: want who decides")}
		}
		if response != "" {
			d.Response = json.RawMessage(response)
		}
		return connected(c, args)
	}
	return a.prints(c)
}

// osUser is who runs the command.
func osUser() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return os.Getenv("USER")
}
