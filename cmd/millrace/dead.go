package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

func (a *app) dead() *cobra.Command {
	c := a.database(&cobra.Command{
		Use: "dead", Short: "Show, edit, replay or discard events that failed at consumers", Args: cobra.NoArgs, RunE: needsCommand,
		Long: "Shows, edits, replays or discards events that consumers could not handle.\n\n" +
			"  dead      a dead letter: its handler failed too often or for good; an operator\n" +
			"            decides, by \"dead replay\" or \"dead discard\"\n" +
			"  retrying  it failed, and is retried when it is due or the broker\n" +
			"            redelivers it\n" +
			"  blocked   it waits behind an earlier event of its key",
	})
	c.AddCommand(a.deadList(), a.deadShow(), a.deadEdit(), a.deadReplay(), a.deadDiscard(), a.deadAudit(), a.deadPurge())
	return c
}

// deadSelection gives a command the flags that select events.
func deadSelection(c *cobra.Command, s *deadletter.Selection) {
	c.Flags().StringVar(&s.Consumer, "consumer", "", "only events of this consumer, service/name")
	c.Flags().StringVar(&s.Group, "group", "", `only events with the same error: a group of "millrace dead list --groups"`)
	c.Flags().StringVar(&s.Key, "key", "", "only events of this ordering key")
	c.Flags().StringVar(&s.Topic, "topic", "", "only events of this topic")
	c.Flags().StringVar(&s.Reason, "reason", "", "only events with this class of error, such as attempts, permanent, panic or deadline")
	momentVar(c, &s.Since, "since", "only events that failed at this time or later: a time, or an age such as 2d")
	momentVar(c, &s.Until, "until", "only events that failed before this time")
}

// failed are the stored states of events that "dead list" lists.
var failed = []string{"dead", "waiting", "parked", "failing"}

func (a *app) deadList() *cobra.Command {
	var l deadletter.Listing
	var state string
	var groups bool
	c := &cobra.Command{
		Use: "list", Short: "List dead letters and other failed events, or count them by error", Args: cobra.NoArgs,
		Example: "  millrace dead list\n  millrace dead list --groups\n  millrace dead list --state all --consumer labour/notify-family",
	}
	deadSelection(c, &l.Selection)
	c.Flags().StringVar(&state, "state", "dead", "only events in this state: "+either(claimStates.choice(failed)))
	oneOf(c, "state", claimStates.choice(failed)...)
	limitVar(c, &l.Limit)
	c.Flags().BoolVar(&groups, "groups", false, "count events by error")
	c.PreRunE = func(*cobra.Command, []string) (err error) {
		l.States, err = claimStates.named(state, failed...)
		return cmp.Or(checkLimit(l.Limit), err)
	}
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		if groups {
			return a.printGroups(ctx, pool, l, state)
		}
		found, err := deadletter.List(ctx, pool, a.schema, l)
		if err != nil {
			return err
		}
		switch {
		case a.json:
			return a.printJSON(rewordedFailed(found))
		case len(found) == 0:
			a.sayNoneFailed(l.Selection, state, "millrace dead list")
			return nil
		}
		var rows [][]string
		for _, e := range found {
			rows = append(rows, []string{
				oneLine(e.EventID), e.Consumer, oneLine(e.Key), failedState(e), tries(e.Attempts), output.Duration(time.Since(e.First)), e.Group, oneLine(why(e.Reason, e.Error)),
			})
		}
		a.table("EVENT# CONSUMER~ KEY~? STATE TRIES? AGE GROUP? ERROR~", rows)
		return nil
	})
	return a.prints(c)
}

// failedState is the state of an event, with what comes next.
func failedState(e deadletter.Event) string {
	state := claimStates.of(e.State)
	switch {
	case e.State == "failing":
		return state + ", broker"
	case e.Due != nil:
		return state + ", " + due(*e.Due)
	}
	return state
}

// reasons are short words for why events failed, where neither their state nor their attempts nor their error says it.
var reasons = map[string]string{
	"panic": "panic", "deadline": "timed out", "lost": "lost its connection", "permanent": "permanent error", "window": "too old", "clock": "from the future", "malformed": "no usable ID",
	"killed": "poison message",
}

// why is the reason for which an event is where it is, with its last error.
func why(reason, text string) string {
	if said := reasons[reason]; said != "" && text != "" {
		return said + ": " + text
	}
	return cmp.Or(text, reasons[reason])
}

// whySentence is the reason for which an event is where it is, where its error does not say it.
func whySentence(reason string) string { return cmp.Or(deadReasons[reason], reasons[reason]) }

// sayNoneFailed says that no event is selected, and which command lists more.
func (a *app) sayNoneFailed(s deadletter.Selection, state, command string) {
	flags := [][2]string{
		{"--consumer", s.Consumer},
		{"--group", s.Group},
		{"--key", s.Key},
		{"--topic", s.Topic},
		{"--reason", s.Reason},
		{"--since", timeFlag(s.Since)},
		{"--until", timeFlag(s.Until)},
	}
	why := "No event has failed."
	if state == "dead" {
		why = "No dead letters. To list events that are retried or blocked, too, run: " + command + " --state all"
	}
	if state == "dead" && givenFlags(flags) != "" || state != "dead" && state != "all" {
		flags = append(flags, [2]string{"--state", state})
	}
	a.sayNone(why, command+" --state all", flags)
}

func (a *app) printGroups(ctx context.Context, pool *pgxpool.Pool, l deadletter.Listing, state string) error {
	groups, err := deadletter.ListGroups(ctx, pool, a.schema, l.Selection)
	if err != nil {
		return err
	}
	groups = groups[:min(len(groups), l.Limit)]
	switch {
	case a.json:
		return a.printJSON(append([]deadletter.ErrorGroup{}, groups...))
	case len(groups) == 0:
		a.sayNoneFailed(l.Selection, state, "millrace dead list --groups")
		return nil
	}
	var rows [][]string
	for _, g := range groups {
		reason, text, _ := strings.Cut(g.Text, ": ")
		rows = append(rows, []string{
			g.Group, strconv.Itoa(g.Events), output.Duration(time.Since(g.First)), output.Duration(time.Since(g.Last)), strings.Join(g.Consumers, ","), oneLine(why(reason, text)),
		})
	}
	a.table("GROUP EVENTS FIRST LAST CONSUMERS~ ERROR~", rows)
	return nil
}

// beginning is as much of an error as a sentence has room for.
func beginning(text string) string { return output.Cut(text, 120) }

func (a *app) deadShow() *cobra.Command {
	var consumer string
	var raw bool
	c := &cobra.Command{
		Use: "show EVENT-ID", ValidArgsFunction: cobra.NoFileCompletions, Short: "Show a failed event with its error, attempts, headers and payload", Args: argument,
		Example: "  millrace dead show 0198c0de…3f2a\n  millrace dead show 0198c0de…3f2a --consumer labour/notify-family --raw > payload.json",
	}
	c.Flags().StringVar(&consumer, "consumer", "", "as it failed for this consumer")
	c.Flags().BoolVar(&raw, "raw", false, "write the payload alone, byte by byte")
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		id, err := a.wholeID(ctx, pool, args[0], "ids_consumers")
		if err != nil {
			return err
		}
		found, err := deadletter.Show(ctx, pool, a.schema, id, consumer)
		switch {
		case err != nil:
			return err
		case len(found) == 0:
			return fmt.Errorf("no consumer has failed to handle event %q, or it was settled since: run \"millrace dead list --state all\" to see which events have failed", id)
		case raw && len(found) > 1:
			return usageError{errors.New("the event failed for several consumers: name one by --consumer")}
		case raw && !readable(found[0].Payload) && a.terminal.Is():
			return usageError{errors.New("the payload is not text: redirect the output to a file")}
		case raw:
			_, err = a.stdout.Write(found[0].Payload)
			return err
		case a.json:
			return a.printJSON(rewordedFailed(found))
		}
		for i, e := range found {
			if i > 0 {
				a.say("")
			}
			a.printFailed(e)
		}
		return nil
	})
	return a.prints(c)
}

func (a *app) printFailed(e deadletter.Event) {
	line := func(name, text string) {
		if text != "" {
			a.terminal.Paragraph(a.stdout, len("consumer  "), name, a.terminal.Dim, text)
		}
	}
	state := a.paintState(claimStates.of(e.State))
	if e.Attempts > 0 {
		state += ", " + haveFailed(e.Attempts)
	}
	if e.Replayed {
		state += ", replayed by an operator"
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
	line("failed", "first at "+e.First.Format(time.RFC3339)+", last at "+e.Failed.Format(time.RFC3339))
	line("group", e.Group)
	line("reason", whySentence(e.Reason))
	line("error", legible([]byte(e.Error)))
	for _, attempt := range e.History {
		text := attempt.At.Format(time.RFC3339) + " " + oneLine(attempt.By)
		if attempt.Error != e.Error {
			text += ": " + oneLine(attempt.Error)
		}
		line("attempt", text)
	}
	for _, k := range slices.Sorted(maps.Keys(e.Origin)) {
		line("origin", oneLine(k)+"="+oneLine(e.Origin[k]))
	}
	for _, k := range slices.Sorted(maps.Keys(e.Metadata)) {
		line("header", oneLine(k)+"="+oneLine(e.Metadata[k]))
	}
	line("payload", output.Count(e.Bytes, "byte"))
	if e.Bytes > 0 {
		a.say("%s", legible(e.Payload))
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
