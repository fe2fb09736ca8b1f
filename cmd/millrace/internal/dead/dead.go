// Package dead implements the command "dead", for events that consumers could not handle.
package dead

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

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/internal/explain"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// Command returns "dead" with its subcommands.
func Command(a *cli.App) *cobra.Command {
	c := a.Database(&cobra.Command{
		Use: "dead", Short: "Show, edit, replay or discard events that failed at consumers", Args: cobra.NoArgs, RunE: cli.NeedsCommand,
		Long: "Shows, edits, replays or discards events that consumers could not handle.\n\n" +
			"  dead      a dead letter: its handler failed too often or for good; an operator\n" +
			"            decides, by \"dead replay\" or \"dead discard\"\n" +
			"  retrying  it failed, and is retried when it is due or the broker\n" +
			"            redelivers it\n" +
			"  blocked   it waits behind an earlier event of its key",
	})
	c.AddCommand(listCommand(a), showCommand(a), editCommand(a), replayCommand(a), replaysCommand(a), stopCommand(a), redirectCommand(a), discardCommand(a), auditCommand(a), purgeCommand(a))
	return c
}

// selectionVar adds the flags that select events.
func selectionVar(c *cobra.Command, s *deadletter.Selection) {
	c.Flags().StringVar(&s.Consumer, "consumer", "", "only events of this consumer, service/name")
	c.Flags().StringVar(&s.Group, "group", "", `only events with the same error: a group of "millrace dead list --groups"`)
	c.Flags().StringVar(&s.Key, "key", "", "only events of this ordering key")
	c.Flags().StringVar(&s.Topic, "topic", "", "only events of this topic")
	c.Flags().StringVar(&s.Reason, "reason", "", "only events with this class of error, such as attempts, permanent, panic or deadline")
	cli.MomentVar(c, &s.Since, "since", "only events that failed at this time or later: a time, or an age such as 2d")
	cli.MomentVar(c, &s.Until, "until", "only events that failed before this time")
}

// failed are the stored states of events that "dead list" shows.
var failed = []string{"dead", "retrying", "blocked", "nacked"}

func listCommand(a *cli.App) *cobra.Command {
	var l deadletter.Listing
	var state string
	var groups bool
	c := &cobra.Command{
		Use: "list", Short: "List dead letters and other failed events, or count them by error", Args: cobra.NoArgs,
		Example: "  millrace dead list\n  millrace dead list --groups\n  millrace dead list --state all --consumer labour/notify-family",
	}
	selectionVar(c, &l.Selection)
	c.Flags().StringVar(&state, "state", "dead", "only events in this state: "+words.Either(words.ClaimStates.Choice(failed)))
	cli.OneOf(c, "state", words.ClaimStates.Choice(failed)...)
	cli.LimitVar(c, &l.Limit)
	c.Flags().BoolVar(&groups, "groups", false, "count events by error")
	c.PreRunE = func(*cobra.Command, []string) (err error) {
		l.States, err = cli.NamedStates(state, failed...)
		return cmp.Or(cli.CheckLimit(l.Limit), err)
	}
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		if groups {
			return printGroups(ctx, a, pool, l, state)
		}
		found, err := deadletter.List(ctx, pool, a.Schema, l)
		if err != nil {
			return err
		}
		switch {
		case a.JSON:
			return a.PrintJSON(rewordedFailed(found))
		case len(found) == 0:
			sayNoneFailed(a, l.Selection, state, "millrace dead list")
			return nil
		}
		var rows [][]string
		for _, e := range found {
			rows = append(rows, []string{
				words.OneLine(e.EventID), e.Consumer, words.OneLine(e.Key), failedState(e), cli.Tries(e.Attempts), words.Duration(time.Since(e.First)), e.Group, words.OneLine(words.Why(e.Reason, e.Error)),
			})
		}
		a.Table("EVENT# CONSUMER~ KEY~? STATE TRIES? AGE GROUP? ERROR~", rows)
		return nil
	})
	return a.Prints(cli.OnEachDatabase(c))
}

// failedState describes the state of an event, and its next attempt.
func failedState(e deadletter.Event) string {
	state := words.ClaimStates.Of(e.State)
	switch {
	case e.State == "nacked":
		return state + ", broker"
	case e.Due != nil:
		return state + ", " + cli.Due(*e.Due)
	}
	return state
}

// sayNoneFailed says that no event is selected, and which command lists all.
func sayNoneFailed(a *cli.App, s deadletter.Selection, state, command string) {
	flags := [][2]string{
		{"--consumer", s.Consumer},
		{"--group", s.Group},
		{"--key", s.Key},
		{"--topic", s.Topic},
		{"--reason", s.Reason},
		{"--since", cli.TimeFlag(s.Since)},
		{"--until", cli.TimeFlag(s.Until)},
	}
	why := "No event has failed."
	if state == "dead" {
		why = "No dead letters. To list events that are retried or blocked, too, run: " + command + " --state all"
	}
	if state == "dead" && cli.GivenFlags(flags) != "" || state != "dead" && state != "all" {
		flags = append(flags, [2]string{"--state", state})
	}
	a.SayNone(why, command+" --state all", flags)
}

func printGroups(ctx context.Context, a *cli.App, pool *pgxpool.Pool, l deadletter.Listing, state string) error {
	groups, err := deadletter.ListGroups(ctx, pool, a.Schema, l.Selection)
	if err != nil {
		return err
	}
	groups = groups[:min(len(groups), l.Limit)]
	switch {
	case a.JSON:
		return a.PrintJSON(append([]deadletter.ErrorGroup{}, groups...))
	case len(groups) == 0:
		sayNoneFailed(a, l.Selection, state, "millrace dead list --groups")
		return nil
	}
	var rows [][]string
	for _, g := range groups {
		reason, text, _ := strings.Cut(g.Text, ": ")
		rows = append(rows, []string{
			g.Group, strconv.Itoa(g.Events), words.Duration(time.Since(g.First)), words.Duration(time.Since(g.Last)), strings.Join(g.Consumers, ","), words.OneLine(words.Why(reason, text)),
		})
	}
	a.Table("GROUP EVENTS FIRST LAST CONSUMERS~ ERROR~", rows)
	return nil
}

func showCommand(a *cli.App) *cobra.Command {
	var consumer string
	var raw bool
	c := &cobra.Command{
		Use: "show EVENT-ID", ValidArgsFunction: cobra.NoFileCompletions, Short: "Show a failed event with its error, attempts, headers and payload", Args: cli.Argument,
		Example: "  millrace dead show 0198c0de…3f2a\n  millrace dead show 0198c0de…3f2a --consumer labour/notify-family --raw > payload.json",
	}
	c.Flags().StringVar(&consumer, "consumer", "", "as it failed for this consumer")
	c.Flags().BoolVar(&raw, "raw", false, "write the payload alone, byte by byte")
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		id, err := explain.WholeID(ctx, pool, a.Schema, args[0], explain.Consumers)
		if err != nil {
			return err
		}
		found, err := deadletter.Show(ctx, pool, a.Schema, id, consumer)
		switch {
		case err != nil:
			return err
		case len(found) == 0:
			return fmt.Errorf("no consumer has failed to handle event %q, or it was settled since: run \"millrace dead list --state all\" to see which events have failed", id)
		case raw && len(found) > 1:
			return cli.Misuse(errors.New("the event failed for several consumers: name one by --consumer"))
		case raw && !output.Readable(found[0].Payload) && a.Terminal.Is():
			return cli.Misuse(errors.New("the payload is not text: redirect the output to a file"))
		case raw:
			_, err = a.Stdout.Write(found[0].Payload)
			return err
		case a.JSON:
			return a.PrintJSON(rewordedFailed(found))
		}
		for i, e := range found {
			if i > 0 {
				a.Say("")
			}
			printFailed(a, e)
		}
		return nil
	})
	return a.Prints(c)
}

func printFailed(a *cli.App, e deadletter.Event) {
	line := func(name, text string) {
		if text != "" {
			a.Terminal.Paragraph(a.Stdout, len("consumer  "), name, a.Terminal.Dim, text)
		}
	}
	state := a.PaintState(words.ClaimStates.Of(e.State))
	if e.Attempts > 0 {
		state += ", " + words.HaveFailed(e.Attempts)
	}
	if e.Replayed {
		state += ", replayed by an operator"
	}
	if e.Due != nil {
		state += ", due at " + e.Due.Format(time.RFC3339)
	}
	line("event", words.OneLine(e.EventID))
	line("consumer", e.Consumer)
	line("state", state)
	line("key", words.OneLine(e.Key))
	line("topic", words.OneLine(e.Topic))
	line("handler", words.OneLine(e.Handler))
	line("failed", "first at "+e.First.Format(time.RFC3339)+", last at "+e.Failed.Format(time.RFC3339))
	line("group", e.Group)
	line("reason", words.WhySentence(e.Reason))
	line("error", output.Legible([]byte(e.Error)))
	for _, attempt := range e.History {
		text := attempt.At.Format(time.RFC3339) + " " + words.OneLine(attempt.By)
		if attempt.Error != e.Error {
			text += ": " + words.OneLine(attempt.Error)
		}
		line("attempt", text)
	}
	for _, k := range slices.Sorted(maps.Keys(e.Origin)) {
		line("origin", words.OneLine(k)+"="+words.OneLine(e.Origin[k]))
	}
	for _, k := range slices.Sorted(maps.Keys(e.Metadata)) {
		line("header", words.OneLine(k)+"="+words.OneLine(e.Metadata[k]))
	}
	line("payload", words.Count(e.Bytes, "byte"))
	if e.Bytes > 0 {
		a.Say("%s", output.Legible(e.Payload))
	}
}

// rewordedFailed replaces stored states by the words that tables use, for JSON.
func rewordedFailed(found []deadletter.Event) []deadletter.Event {
	reworded := append([]deadletter.Event{}, found...)
	for i := range reworded {
		reworded[i].State = words.ClaimStates.Of(reworded[i].State)
	}
	return reworded
}

// rewordedResult replaces stored states by the words that tables use, for JSON.
func rewordedResult(r deadletter.Result) deadletter.Result {
	if r.Others != nil {
		r.Others, _ = words.ClaimStates.Count(r.Others)
	}
	return r
}
