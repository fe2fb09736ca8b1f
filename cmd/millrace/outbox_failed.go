package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

func (a *app) outboxList() *cobra.Command {
	var l outbox.Listing
	var state string
	c := &cobra.Command{Use: "list", Short: "Failed and delayed events", Args: cobra.NoArgs}
	c.Flags().StringVar(&state, "state", "all", "parked, retry, queued, dead, delayed or all")
	oneOf(c, "state", "parked", "retry", "queued", "dead", "delayed", "all")
	c.Flags().StringVar(&l.Topic, "topic", "", "only those of this topic")
	c.Flags().StringVar(&l.Key, "key", "", "only those of this key")
	c.Flags().IntVar(&l.Limit, "limit", 100, "how many")
	c.Flags().BoolVar(&l.Payload, "payload", false, "show payloads")
	c.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains([]string{"parked", "retry", "queued", "dead", "delayed", "all"}, state) {
			return usageError{fmt.Errorf("--state is %q: want parked, retry, queued, dead, delayed or all", state)}
		}
		return checkLimit(l.Limit)
	}
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		if state != "all" {
			l.States = []string{state}
		}
		found, err := outbox.List(ctx, pool, a.schema, l)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(append([]outbox.Waiting{}, found...))
		}
		var lines [][]string
		head := "EVENT TOPIC KEY STATE ATTEMPTS AGE DUE REASON"
		if l.Payload {
			head += " PAYLOAD"
		}
		for _, e := range found {
			due := ""
			if e.Due != nil {
				due = e.Due.Format(time.RFC3339)
			}
			state := e.State
			if e.Command != "" {
				state += ", to " + e.Command
			}
			line := []string{oneLine(e.EventID), oneLine(e.Topic), oneLine(e.Key), state, strconv.Itoa(e.Attempts), ago(time.Since(e.Created)), due, oneLine(e.Reason)}
			if l.Payload {
				line = append(line, oneLine(string(e.Payload)))
			}
			lines = append(lines, line)
		}
		a.table(head, lines)
		return nil
	})
	return a.prints(c)
}

func (a *app) outboxRetry() *cobra.Command {
	return a.outboxCommand(outbox.Requeue, &cobra.Command{
		Use: "retry {EVENT-ID… | --key KEY | --topic TOPIC | --all}", ValidArgsFunction: cobra.NoFileCompletions, Short: "Have failed events tried again now",
		Long: "Has events tried again that are parked, wait for their next attempt, or were discarded. Those that wait behind them follow.",
	})
}

func (a *app) outboxDiscard() *cobra.Command {
	return a.outboxCommand(outbox.Discard, &cobra.Command{
		Use: "discard {EVENT-ID… | --key KEY | --topic TOPIC | --all}", ValidArgsFunction: cobra.NoFileCompletions, Short: "Give failed events up",
		Long: "Gives events up. They are kept as dead, to be seen, retried or purged; those that wait behind them go on.",
	})
}

func (a *app) outboxCommand(do func(context.Context, pgtx.DB, string, outbox.Selection) (int64, error), c *cobra.Command) *cobra.Command {
	var s outbox.Selection
	var all bool
	c.Flags().StringVar(&s.Key, "key", "", "all those of this key")
	c.Flags().StringVar(&s.Topic, "topic", "", "all those of this topic")
	c.Flags().BoolVar(&all, "all", false, "all of them")
	connected := a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		n, err := do(ctx, pool, a.schema, s)
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New(`no such event: "millrace outbox list" shows which there are`)
		}
		if a.json {
			return a.printJSON(map[string]int64{"flagged": n})
		}
		fmt.Fprintf(a.stdout, "%d events are flagged; a running relay carries it out\n", n)
		return nil
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		s.EventIDs = args
		named := len(args) > 0 || s.Key != "" || s.Topic != ""
		switch {
		case all && named:
			return usageError{errors.New("--all takes no event, key or topic")}
		case !all && !named:
			return usageError{errors.New("want event IDs, --key, --topic or --all")}
		}
		if len(args) == 0 {
			s.EventIDs = nil
		}
		return connected(c, args)
	}
	return a.prints(c)
}
