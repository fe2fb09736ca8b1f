package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
)

// listed are the states of events that "outbox list" lists.
var listed = []string{"dead", "retrying", "blocked", "discarded", "delayed"}

func (a *app) outboxList() *cobra.Command {
	var l outboxadmin.Listing
	var state string
	c := &cobra.Command{
		Use: "list", Short: "List events that could not be published, and delayed ones", Args: cobra.NoArgs,
		Long: "Lists events that could not be published, and delayed ones, the oldest first.\n\n" +
			"  dead       the broker refused it, or it failed too often; an operator\n" +
			"             decides, by \"outbox retry\" or \"outbox discard\"\n" +
			"  retrying   it failed, and a relay will try again when it is due\n" +
			"  blocked    it waits behind an earlier event of its key\n" +
			"  discarded  an operator discarded it; it is kept until \"outbox purge\"\n" +
			"  delayed    it is not due yet",
		Example: "  millrace outbox list --state dead\n  millrace outbox list --topic labour.completed --payload\n  millrace outbox list -o json --limit 1000",
	}
	accepted := append(slices.Clone(listed), "all")
	c.Flags().StringVar(&state, "state", "all", "only events in this state: "+either(accepted))
	oneOf(c, "state", accepted...)
	c.Flags().StringVar(&l.Topic, "topic", "", "only events of this topic")
	c.Flags().StringVar(&l.Key, "key", "", "only events of this key")
	limitVar(c, &l.Limit)
	c.Flags().BoolVar(&l.Payload, "payload", false, "show payloads, too")
	c.PreRunE = func(*cobra.Command, []string) error {
		switch {
		case slices.Contains(listed, state):
			l.States = []string{state}
		case state != "all":
			return wrongState(state, accepted)
		}
		return checkLimit(l.Limit)
	}
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		found, err := outboxadmin.List(ctx, pool, a.schema, l)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(append([]outboxadmin.Event{}, found...))
		}
		if len(found) == 0 {
			a.say("No such events.")
			return nil
		}
		var rows [][]string
		columns := "EVENT# TOPIC~ KEY~? STATE TRIES? AGE REASON~"
		if l.Payload {
			columns += " PAYLOAD~"
		}
		for _, e := range found {
			row := []string{oneLine(e.EventID), oneLine(e.Topic), oneLine(e.Key), waitingState(e), tries(e.Attempts), output.Duration(time.Since(e.Created)), oneLine(e.Reason)}
			if l.Payload {
				row = append(row, oneLine(string(e.Payload)))
			}
			rows = append(rows, row)
		}
		a.table(columns, rows)
		return nil
	})
	return a.prints(c)
}

// waitingState is the state of an event in the outbox, with what comes next.
func waitingState(e outboxadmin.Event) string {
	switch {
	case e.Command != "":
		return e.State + ", to " + e.Command
	case e.Due != nil:
		return e.State + ", " + due(*e.Due)
	}
	return e.State
}

// due is when something comes next, in a table.
func due(at time.Time) string {
	if d := time.Until(at); d > 0 {
		return "in " + output.Duration(d)
	}
	return "due"
}

// tries are attempts, in a table.
func tries(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func (a *app) outboxRetry() *cobra.Command {
	return a.outboxCommand(outboxadmin.Retry, "retried", &cobra.Command{
		Use: "retry {EVENT-ID… | --key KEY | --topic TOPIC | --all}", ValidArgsFunction: cobra.NoFileCompletions, Short: "Retry events that could not be published",
		Long:    "Marks dead, retrying and discarded events; a running relay retries them at once. Events blocked by them follow in order.",
		Example: "  millrace outbox retry 0198c0de…3f2a\n  millrace outbox retry --topic labour.completed",
	})
}

func (a *app) outboxDiscard() *cobra.Command {
	return a.outboxCommand(outboxadmin.Discard, "discarded", &cobra.Command{
		Use: "discard {EVENT-ID… | --key KEY | --topic TOPIC | --all}", ValidArgsFunction: cobra.NoFileCompletions, Short: "Discard events that could not be published",
		Long: "Marks dead, retrying and blocked events; a running relay discards them. They are kept as discarded, and can still be\n" +
			"retried, until \"outbox purge\" deletes them. Events blocked by them go on.",
		Example: "  millrace outbox discard 0198c0de…3f2a\n  millrace outbox discard --key labour-7",
	})
}

func (a *app) outboxCommand(do func(context.Context, pgtx.DB, string, outboxadmin.Selection) (int64, error), done string, c *cobra.Command) *cobra.Command {
	var s outboxadmin.Selection
	var all bool
	c.Flags().StringVar(&s.Key, "key", "", "all events of this key")
	c.Flags().StringVar(&s.Topic, "topic", "", "all events of this topic")
	c.Flags().BoolVar(&all, "all", false, "all events")
	connected := a.connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) (err error) {
		if s.EventIDs, err = a.wholeIDs(ctx, pool, args, "ids_failed"); err != nil {
			return err
		}
		n, err := do(ctx, pool, a.schema, s)
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New(`no such event: run "millrace outbox list" to see which there are`)
		}
		if a.json {
			return a.printJSON(map[string]int64{"flagged": n})
		}
		a.say("%s will be %s by a running relay.", output.Count(n, "event"), done)
		return nil
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		named := len(args) > 0 || s.Key != "" || s.Topic != ""
		switch {
		case all && named:
			return usageError{errors.New("--all cannot be combined with event IDs, --key or --topic")}
		case !all && !named:
			return usageError{errors.New("want event IDs, --key, --topic or --all")}
		}
		return connected(c, args)
	}
	return a.prints(c)
}
