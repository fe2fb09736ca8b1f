package outbox

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/explain"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
)

// listed are the states of events that "outbox list" shows.
var listed = []string{"dead", "retrying", "blocked", "discarded", "delayed"}

func listCommand(a *cli.App) *cobra.Command {
	var l outboxadmin.Listing
	var state string
	var groups bool
	c := &cobra.Command{
		Use: "list", Short: "List failed and delayed events, or count failed ones by error", Args: cobra.NoArgs,
		Long: "Lists events that could not be published, and delayed ones, the oldest first.\n\n" +
			"  dead       the broker refused it, or it failed too often; an operator\n" +
			"             decides, by \"outbox retry\" or \"outbox discard\"\n" +
			"  retrying   it failed, and a relay will try again when it is due\n" +
			"  blocked    it waits behind an earlier event of its key\n" +
			"  discarded  an operator discarded it; it is kept until \"outbox purge\"\n" +
			"  delayed    it is not due yet",
		Example: "  millrace outbox list --state dead\n  millrace outbox list --groups\n  millrace outbox list --topic labour.completed --payload\n  millrace outbox list -o json --limit 1000",
	}
	accepted := append(slices.Clone(listed), "all")
	c.Flags().StringVar(&state, "state", "all", "only events in this state: "+words.Either(accepted))
	cli.OneOf(c, "state", accepted...)
	c.Flags().StringVar(&l.Topic, "topic", "", "only events of this topic")
	c.Flags().StringVar(&l.Key, "key", "", "only events of this key")
	c.Flags().StringVar(&l.Group, "group", "", `only events with the same error: a group of "millrace outbox list --groups"`)
	c.Flags().BoolVar(&groups, "groups", false, "count events by error")
	cli.LimitVar(c, &l.Limit)
	c.Flags().BoolVar(&l.Payload, "payload", false, "show payloads, too")
	c.PreRunE = func(*cobra.Command, []string) error {
		switch {
		case slices.Contains(listed, state):
			l.States = []string{state}
		case state != "all":
			return cli.WrongState(state, accepted)
		}
		return cli.CheckLimit(l.Limit)
	}
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		if groups {
			return printGroups(ctx, a, pool, l, state)
		}
		found, err := outboxadmin.List(ctx, pool, a.Schema, l)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(append([]outboxadmin.Event{}, found...))
		}
		if len(found) == 0 {
			a.SayNone("No event has failed, and none is delayed.", "millrace outbox list", selectionFlags(l, state))
			return nil
		}
		var rows [][]string
		columns := "EVENT# TOPIC~ KEY~? STATE TRIES? AGE GROUP? REASON~"
		if l.Payload {
			columns += " PAYLOAD~"
		}
		for _, e := range found {
			row := []string{words.OneLine(e.EventID), words.OneLine(e.Topic), words.OneLine(e.Key), waitingState(e), cli.Tries(e.Attempts), words.Duration(time.Since(e.Created)), e.Group, words.OneLine(e.Reason)}
			if l.Payload {
				row = append(row, words.OneLine(string(e.Payload)))
			}
			rows = append(rows, row)
		}
		a.Table(columns, rows)
		return nil
	})
	return a.Prints(cli.OnEachDatabase(c))
}

func printGroups(ctx context.Context, a *cli.App, pool *pgxpool.Pool, l outboxadmin.Listing, state string) error {
	groups, err := outboxadmin.ListGroups(ctx, pool, a.Schema, l)
	switch {
	case err != nil:
		return err
	case a.JSON:
		return a.PrintJSON(append([]outboxadmin.ErrorGroup{}, groups...))
	case len(groups) == 0:
		a.SayNone("No event has failed.", "millrace outbox list --groups", selectionFlags(l, state))
		return nil
	}
	var rows [][]string
	for _, g := range groups {
		rows = append(rows, []string{
			g.Group, strconv.Itoa(g.Events), cli.Tries(g.Dead), cli.Tries(g.Retrying), cli.Tries(g.Discarded), words.Duration(time.Since(g.First)), words.Duration(time.Since(g.Last)),
			words.OneLine(strings.Join(g.Topics, ",")), words.OneLine(g.Text),
		})
	}
	a.Table("GROUP EVENTS DEAD? RETRYING? DISCARDED? FIRST LAST TOPICS~ REASON~", rows)
	return nil
}

// selectionFlags returns the flags that select what "outbox list" shows.
func selectionFlags(l outboxadmin.Listing, state string) [][2]string {
	if state == "all" {
		state = ""
	}
	return [][2]string{{"--state", state}, {"--topic", l.Topic}, {"--key", l.Key}, {"--group", l.Group}}
}

// waitingState describes the state of an event in the outbox, and what comes next.
func waitingState(e outboxadmin.Event) string {
	switch {
	case e.Command != "":
		return e.State + ", to " + e.Command
	case e.Due != nil:
		return e.State + ", " + cli.Due(*e.Due)
	}
	return e.State
}

func retryCommand(a *cli.App) *cobra.Command {
	return actionCommand(a, outboxadmin.Retry, "retried", &cobra.Command{
		Use: "retry {EVENT-ID… | --key KEY | --topic TOPIC | --group GROUP | --all}", ValidArgsFunction: cobra.NoFileCompletions, Short: "Retry events that could not be published",
		Long:    "Marks dead, retrying and discarded events; a running relay retries them at once. Events blocked by them follow in order.",
		Example: "  millrace outbox retry 0198c0de…3f2a\n  millrace outbox retry --topic labour.completed\n  millrace outbox retry --group 3f2a9c1e",
	})
}

func discardCommand(a *cli.App) *cobra.Command {
	return actionCommand(a, outboxadmin.Discard, "discarded", &cobra.Command{
		Use: "discard {EVENT-ID… | --key KEY | --topic TOPIC | --group GROUP | --all}", ValidArgsFunction: cobra.NoFileCompletions, Short: "Discard events that could not be published",
		Long: "Marks dead, retrying and blocked events; a running relay discards them. They are kept as discarded, and can still be\n" +
			"retried, until \"outbox purge\" deletes them. Events blocked by them go on.",
		Example: "  millrace outbox discard 0198c0de…3f2a\n  millrace outbox discard --key labour-7",
	})
}

func actionCommand(a *cli.App, do func(context.Context, pgtx.DB, string, outboxadmin.Selection, outboxadmin.By) (int64, error), done string, c *cobra.Command) *cobra.Command {
	var s outboxadmin.Selection
	var by outboxadmin.By
	var all bool
	c.Flags().StringVar(&s.Key, "key", "", "all events of this key")
	c.Flags().StringVar(&s.Topic, "topic", "", "all events of this topic")
	c.Flags().StringVar(&s.Group, "group", "", `all events with the same error: a group of "millrace outbox list --groups"`)
	c.Flags().BoolVar(&all, "all", false, "all events")
	cli.AuditVar(c, &by.Actor, &by.Note)
	connected := a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) (err error) {
		if s.EventIDs, err = explain.WholeIDs(ctx, pool, a.Schema, args, explain.Failed); err != nil {
			return err
		}
		n, err := do(ctx, pool, a.Schema, s, by)
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New(`no such event: run "millrace outbox list" to see which there are`)
		}
		if a.JSON {
			return a.PrintJSON(map[string]int64{"flagged": n})
		}
		a.Say("%s will be %s by a running relay.", words.Count(n, "event"), done)
		return nil
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		named := len(args) > 0 || s.Key != "" || s.Topic != "" || s.Group != ""
		switch {
		case all && named:
			return cli.Misuse(errors.New("--all cannot be combined with event IDs, --key, --topic or --group"))
		case !all && !named:
			return cli.Misuse(errors.New("want event IDs, --key, --topic, --group or --all"))
		}
		return connected(c, args)
	}
	return a.Prints(c)
}
