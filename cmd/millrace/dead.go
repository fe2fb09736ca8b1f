package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/middleware/claim"
)

func (a *app) dead() *cobra.Command {
	c := a.database(&cobra.Command{
		Use: "dead", Short: "Look at events that consumers could not handle, and mend, replay or discard them", Args: cobra.NoArgs, RunE: needsCommand,
	})
	c.AddCommand(a.deadList(), a.deadShow(), a.deadEdit(), a.deadReplay(), a.deadDiscard(), a.deadAudit(), a.deadPurge())
	return c
}

// deadSelection gives a command the flags that select events.
func deadSelection(c *cobra.Command, s *claim.Selection) {
	c.Flags().StringVar(&s.Consumer, "consumer", "", "only those of this consumer")
	c.Flags().StringVar(&s.Group, "group", "", `only those that failed alike: a group of "millrace dead list --groups"`)
	c.Flags().StringVar(&s.Key, "key", "", "only those of this ordering key")
}

func (a *app) deadList() *cobra.Command {
	var l claim.Listing
	var state string
	var groups bool
	c := &cobra.Command{Use: "list", Short: "Dead letters and other events that failed, one by one or by their errors", Args: cobra.NoArgs}
	deadSelection(c, &l.Selection)
	c.Flags().StringVar(&state, "state", "dead", "dead, waiting (for a retry), parked (behind another of its key), failing (the broker has it) or all")
	oneOf(c, "state", "dead", "waiting", "parked", "failing", "all")
	c.Flags().IntVar(&l.Limit, "limit", 100, "how many")
	c.Flags().BoolVar(&groups, "groups", false, "count those that failed alike")
	c.PreRunE = func(*cobra.Command, []string) (err error) {
		l.States, err = deadStates(state, "dead", "waiting", "parked", "failing")
		return cmp.Or(checkLimit(l.Limit), err)
	}
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		if groups {
			return a.printGroups(ctx, pool, l)
		}
		found, err := claim.List(ctx, pool, a.schema, l)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(append([]claim.FailedEvent{}, found...))
		}
		var lines [][]string
		for _, e := range found {
			due := ""
			if e.Due != nil {
				due = e.Due.Format(time.RFC3339)
			}
			lines = append(lines, []string{
				oneLine(e.EventID), e.Consumer, oneLine(e.Key), e.State, strconv.Itoa(e.Attempts), ago(time.Since(e.First)), due, e.Group, e.Reason, oneLine(beginning(e.Error)),
			})
		}
		a.table("EVENT CONSUMER KEY STATE ATTEMPTS AGE DUE GROUP REASON ERROR", lines)
		return nil
	})
	return a.prints(c)
}

// deadStates are those of the flag.
func deadStates(state string, may ...string) ([]string, error) {
	if state == "all" {
		return may, nil
	}
	if !slices.Contains(may, state) {
		return nil, usageError{fmt.Errorf("--state is %q: want %s or all", state, strings.Join(may, ", "))}
	}
	return []string{state}, nil
}

func (a *app) printGroups(ctx context.Context, pool *pgxpool.Pool, l claim.Listing) error {
	groups, err := claim.ListGroups(ctx, pool, a.schema, l.Selection)
	if err != nil {
		return err
	}
	groups = groups[:min(len(groups), l.Limit)]
	if a.json {
		return a.printJSON(append([]claim.ErrorGroup{}, groups...))
	}
	var lines [][]string
	for _, g := range groups {
		lines = append(lines, []string{
			g.Group, strconv.Itoa(g.Events), g.First.Format(time.RFC3339), g.Last.Format(time.RFC3339), strings.Join(g.Consumers, ","), oneLine(beginning(g.Text)),
		})
	}
	a.table("GROUP EVENTS FIRST LAST CONSUMERS ERROR", lines)
	return nil
}

// beginning is what a line of a table has room for.
func beginning(text string) string {
	const room = 120
	if utf8.RuneCountInString(text) <= room {
		return text
	}
	return string([]rune(text)[:room]) + "…"
}

func (a *app) deadShow() *cobra.Command {
	var consumer string
	var raw bool
	c := &cobra.Command{Use: "show EVENT-ID", ValidArgsFunction: cobra.NoFileCompletions, Short: "All that is known of an event that failed, with its payload", Args: cobra.ExactArgs(1)}
	c.Flags().StringVar(&consumer, "consumer", "", "as this consumer has it")
	c.Flags().BoolVar(&raw, "raw", false, "write the payload alone, byte by byte")
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		found, err := claim.Show(ctx, pool, a.schema, args[0], consumer)
		switch {
		case err != nil:
			return err
		case len(found) == 0:
			return fmt.Errorf("no event %q has failed, or it is settled: \"millrace dead list\" shows which there are", args[0])
		case raw && len(found) > 1:
			return usageError{errors.New("it failed for several consumers: want --consumer with --raw")}
		case raw && !readable(found[0].Payload) && isTerminal(a.stdout):
			return usageError{errors.New("the payload is not text, and this is a terminal: redirect it")}
		case raw:
			_, err = a.stdout.Write(found[0].Payload)
			return err
		case a.json:
			return a.printJSON(found)
		}
		for i, e := range found {
			if i > 0 {
				fmt.Fprintln(a.stdout)
			}
			a.printFailed(e)
		}
		return nil
	})
	return a.prints(c)
}

func (a *app) printFailed(e claim.FailedEvent) {
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(a.stdout, "%-9s %s\n", name, text)
		}
	}
	state := fmt.Sprintf("%s, %d attempts", e.State, e.Attempts)
	if e.Replayed {
		state += ", replayed"
	}
	if e.Due != nil {
		state += ", due at " + e.Due.Format(time.RFC3339)
	}
	line("event", oneLine(e.EventID))
	line("consumer", e.Consumer)
	line("state", state)
	line("key", oneLine(e.Key))
	line("topic", oneLine(e.Topic))
	line("handler", oneLine(e.Handler))
	line("failed", e.First.Format(time.RFC3339)+" at first, "+e.Failed.Format(time.RFC3339)+" the last time")
	line("group", e.Group)
	line("reason", e.Reason)
	line("error", legible([]byte(e.Error)))
	for _, attempt := range e.History {
		line("attempt", attempt.At.Format(time.RFC3339)+" "+oneLine(attempt.By)+": "+oneLine(beginning(attempt.Error)))
	}
	for _, k := range slices.Sorted(maps.Keys(e.Origin)) {
		line("origin", oneLine(k)+"="+oneLine(e.Origin[k]))
	}
	for _, k := range slices.Sorted(maps.Keys(e.Metadata)) {
		line("header", oneLine(k)+"="+oneLine(e.Metadata[k]))
	}
	fmt.Fprintf(a.stdout, "%-9s %d bytes\n", "payload", e.Bytes)
	if e.Bytes > 0 {
		fmt.Fprintln(a.stdout, legible(e.Payload))
	}
}

// readable reports whether it is text that cannot disturb a terminal.
func readable(b []byte) bool {
	return utf8.Valid(b) && !strings.ContainsFunc(string(b), func(r rune) bool { return !unicode.IsGraphic(r) && r != '\n' && r != '\t' })
}

// legible is text of others as it is, if it is readable, else quoted.
func legible(b []byte) string {
	if readable(b) {
		return string(b)
	}
	return strconv.QuoteToGraphic(string(b)) // also what it has of backslashes: it must not be ambiguous
}

// isTerminal reports whether somebody looks at it.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
