package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/pgtx"
)

func (a *app) deadReplay() *cobra.Command {
	return a.deadCommand(claim.Replay, []string{"dead", "waiting"}, "are tried again now",
		"running services bring them back, those whose handlers' subscribers are wrapped by Claim.Subscriber; without one they wait", &cobra.Command{
			Use: "replay {EVENT-ID… | --consumer NAME | --group GROUP | --key KEY | --all}", ValidArgsFunction: cobra.NoFileCompletions, Short: "Have dead letters tried again",
			Long: "Has dead letters tried again, with all their attempts and in their former order. Parked events follow those before them.",
		})
}

func (a *app) deadDiscard() *cobra.Command {
	return a.deadCommand(claim.Discard, []string{"dead", "waiting", "parked"}, "are discarded", "", &cobra.Command{
		Use: "discard {EVENT-ID… | --consumer NAME | --group GROUP | --key KEY | --all}", ValidArgsFunction: cobra.NoFileCompletions, Short: "Give dead letters up, for good",
		Long: "Deletes dead letters. What the broker redelivers of them is absorbed, and later events of their keys go on.",
	})
}

// deadBy gives a command the flags that say who acts.
func deadBy(c *cobra.Command, by *claim.By) {
	c.Flags().StringVar(&by.Actor, "actor", somebody(), "who does it, for the audit")
	c.Flags().StringVar(&by.Note, "note", "", "why, for the audit")
}

// somebody is who runs the command, and where.
func somebody() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); name == "" && err == nil {
		name = u.Username
	}
	host, _ := os.Hostname() // "" will do
	return name + "@" + host
}

type deadAction func(context.Context, pgtx.DB, string, claim.Selection, claim.By) (claim.Result, error)

func (a *app) deadCommand(do deadAction, states []string, done, then string, c *cobra.Command) *cobra.Command {
	var s claim.Selection
	var by claim.By
	var all bool
	var state string
	deadSelection(c, &s)
	deadBy(c, &by)
	c.Flags().BoolVar(&all, "all", false, "all of them")
	c.Flags().StringVar(&state, "state", "dead", strings.Join(states, ", ")+" or all")
	connected := a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		r, err := do(ctx, pool, a.schema, s, by)
		if err != nil {
			return err
		}
		left := leftAlone(r)
		if r.Done == 0 {
			return errors.New(`no such event: "millrace dead list" shows which there are` + left)
		}
		if a.json {
			return a.printJSON(r)
		}
		fmt.Fprintf(a.stdout, "%d events %s%s\n", r.Done, done, left)
		if r.Behind > 0 {
			fmt.Fprintf(a.stdout, "%d of them wait behind an earlier event of their key\n", r.Behind)
		}
		if then != "" {
			fmt.Fprintln(a.stdout, then)
		}
		return nil
	})
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		s.EventIDs = args
		named := len(args) > 0 || s.Consumer != "" || s.Group != "" || s.Key != ""
		switch {
		case all && named:
			return usageError{errors.New("--all takes no event, consumer, group or key")}
		case !all && !named:
			return usageError{errors.New("want event IDs, --consumer, --group, --key or --all")}
		}
		if s.States, err = deadStates(state, states...); err != nil {
			return err
		}
		return connected(c, args)
	}
	return a.prints(c)
}

// leftAlone tells of what was selected and not touched.
func leftAlone(r claim.Result) string {
	var left []string
	if r.InHand > 0 {
		left = append(left, fmt.Sprintf("%d in the hands of a handler, or changed, at this moment", r.InHand))
	}
	for _, state := range slices.Sorted(maps.Keys(r.Others)) {
		left = append(left, fmt.Sprintf("%d %s", r.Others[state], state))
	}
	if len(left) == 0 {
		return ""
	}
	return "; left alone: " + strings.Join(left, ", ")
}

func (a *app) deadAudit() *cobra.Command {
	var event, consumer string
	var limit int
	c := &cobra.Command{Use: "audit", Short: "What operators did, the last first", Args: cobra.NoArgs}
	c.Flags().StringVar(&event, "event", "", "only to this event")
	c.Flags().StringVar(&consumer, "consumer", "", "only to those of this consumer")
	c.Flags().IntVar(&limit, "limit", 100, "how many")
	c.PreRunE = func(*cobra.Command, []string) error { return checkLimit(limit) }
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		found, err := claim.ListAudit(ctx, pool, a.schema, event, consumer, limit)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(append([]claim.Audit{}, found...))
		}
		var lines [][]string
		for _, e := range found {
			lines = append(lines, []string{
				e.At.Format(time.RFC3339), oneLine(e.Actor), e.Action, oneLine(e.EventID), e.Consumer, oneLine(string(e.Detail)),
			})
		}
		a.table("TIME ACTOR ACTION EVENT CONSUMER DETAIL", lines)
		return nil
	})
	return a.prints(c)
}

func (a *app) deadPurge() *cobra.Command {
	var by claim.By
	var olderThan time.Duration
	c := &cobra.Command{
		Use: "purge --older-than 90d", Short: "Discard old dead letters, and forget what operators did long ago", Args: cobra.NoArgs,
		Long: "Discards dead letters that failed longer ago than that, and forgets what operators did before. For the owner of the tables.",
	}
	deadBy(c, &by)
	ageVar(c, &olderThan, "older-than", "how long ago they failed, such as 90d or 12h")
	c.PreRunE = func(*cobra.Command, []string) error { return checkAge("older-than", olderThan) }
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		p, err := claim.Purge(ctx, pool, a.schema, olderThan, by)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(p)
		}
		fmt.Fprintf(a.stdout, "%d dead letters are discarded, and %d rows of the audit forgotten\n", p.Events, p.Audit)
		return nil
	})
	return a.prints(c)
}
