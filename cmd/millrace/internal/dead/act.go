package dead

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/explain"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/pgtx"
)

func discardCommand(a *cli.App) *cobra.Command {
	return actionCommand(a, deadletter.Discard, nil, []string{"dead", "retrying", "blocked"}, "discarded", &cobra.Command{
		Use: "discard {EVENT-ID… | --consumer NAME | --group GROUP | --key KEY | --topic TOPIC | --reason REASON | --all}", ValidArgsFunction: cobra.NoFileCompletions, Short: "Discard dead letters for good",
		Long:    "Discards dead letters for good. If the broker redelivers them they are ignored, and later events of their keys go on.",
		Example: "  millrace dead discard 0198c0de…3f2a --note \"test data\"\n  millrace dead discard --consumer labour/notify-family --state all",
	})
}

func redirectCommand(a *cli.App) *cobra.Command {
	var to, topic string
	redirect := func(ctx context.Context, db pgtx.DB, schema string, s deadletter.Selection, by deadletter.By) (deadletter.Result, error) {
		if topic != "" {
			return deadletter.Republish(ctx, db, schema, s, topic, by)
		}
		return deadletter.Redirect(ctx, db, schema, s, to, by)
	}
	c := actionCommand(a, redirect, nil, []string{"dead", "retrying", "blocked"}, "redirected", &cobra.Command{
		Use: "redirect {--to CONSUMER | --to-topic TOPIC} {EVENT-ID… | --consumer NAME | --group GROUP | --key KEY | --topic TOPIC | --reason REASON | --all}", ValidArgsFunction: cobra.NoFileCompletions, Short: "Hand dead letters to another consumer or topic",
		Long: "Hands dead letters to another consumer, which retries them at once. Use it after a handler was renamed, or moved to another service.\n" +
			"An event that the other consumer has already handled is only discarded here.\n" +
			"With --to-topic they are published to another topic, with their IDs, through the outbox of the same schema, and discarded here.",
		Example: "  millrace dead redirect --consumer labour/notify --to labour/notify-family --note \"renamed\"\n  millrace dead redirect 0198c0de…3f2a --to billing/notify\n  millrace dead redirect --group 3f2a9c1e --to-topic labour.completed.manual",
	})
	c.Flags().StringVar(&to, "to", "", "the consumer that gets them, as service/handler")
	c.Flags().StringVar(&topic, "to-topic", "", "the topic that they are published to")
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if (to == "") == (topic == "") {
			return cli.Misuse(errors.New("want either --to with the consumer that gets the events, such as labour/notify-family, or --to-topic with the topic that they are published to"))
		}
		return run(c, args)
	}
	return c
}

// action is an operator's function on selected events.
type action func(context.Context, pgtx.DB, string, deadletter.Selection, deadletter.By) (deadletter.Result, error)

// actionCommand completes a command that acts on events. pace is nil if the command has no pace.
func actionCommand(a *cli.App, do action, pace *pace, states []string, done string, c *cobra.Command) *cobra.Command {
	var s deadletter.Selection
	var by deadletter.By
	var all, dry bool
	var state string
	selectionVar(c, &s)
	cli.AuditVar(c, &by.Actor, &by.Note)
	c.Flags().BoolVar(&all, "all", false, "all dead letters")
	c.Flags().BoolVar(&dry, "dry-run", false, "count the events by error, and change none")
	c.Flags().StringVar(&state, "state", "dead", "only events in this state: "+words.Either(words.ClaimStates.Choice(states)))
	cli.OneOf(c, "state", words.ClaimStates.Choice(states)...)
	connected := a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) (err error) {
		if s.EventIDs, err = explain.WholeIDs(ctx, pool, a.Schema, args, explain.Consumers); err != nil {
			return err
		}
		if dry {
			return printGroups(ctx, a, pool, deadletter.Listing{Selection: s, Limit: 100}, state)
		}
		if pace.given() {
			return beginReplay(ctx, a, pool, s, pace, by)
		}
		r, err := do(ctx, pool, a.Schema, s, by)
		if err != nil {
			return err
		}
		none := r.Done == 0
		if none && (!all || r.InFlight > 0) {
			return errors.New(strings.Join(append([]string{noSuchEvent}, leftAlone(r)...), "\n"))
		}
		if a.JSON {
			return a.PrintJSON(rewordedResult(r))
		}
		if none {
			sayNoneFailed(a, s, state, "millrace dead list")
		} else {
			a.Say("%s %s.", words.Count(r.Done, "event"), done)
		}
		if r.Behind > 0 {
			a.Say("%d of them %s blocked by an earlier event of the same key.", r.Behind, words.Pick(r.Behind, "is", "are"))
		}
		if r.Known > 0 {
			a.Say("%d of them %s only discarded, because the other consumer already had %s.", r.Known, words.Pick(r.Known, "was", "were"), words.Pick(r.Known, "it", "them"))
		}
		for _, line := range leftAlone(r) {
			a.Say("%s", a.Terminal.Yellow(line))
		}
		return nil
	})
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		if err := pace.check(); err != nil {
			return err
		}
		if pace.resumes() {
			return resumeReplay(a, c, args, pace, by)
		}
		named := len(args) > 0 || s.Consumer != "" || s.Group != "" || s.Key != "" || s.Topic != "" || s.Reason != ""
		switch {
		case all && named:
			return cli.Misuse(errors.New("--all cannot be combined with event IDs, --consumer, --group, --key, --topic or --reason"))
		case !all && !named:
			return cli.Misuse(errors.New("want event IDs, --consumer, --group, --key, --topic, --reason or --all"))
		case !s.Since.IsZero() && !s.Until.IsZero() && !s.Since.Before(s.Until):
			return cli.Misuse(fmt.Errorf("--since is %s: want a time before --until, which is %s", cli.TimeFlag(s.Since), cli.TimeFlag(s.Until)))
		}
		if s.States, err = cli.NamedStates(state, states...); err != nil {
			return err
		}
		return connected(c, args)
	}
	return a.Prints(c)
}

// noSuchEvent is the message for an empty selection.
const noSuchEvent = `no such event: run "millrace dead list" to see which there are`

// leftAlone describes selected events that were not changed.
func leftAlone(r deadletter.Result) (lines []string) {
	say := func(n int, why string) {
		lines = append(lines, fmt.Sprintf("%s %s not changed: %s.", words.Count(n, "event"), words.Pick(n, "was", "were"), why))
	}
	if r.InFlight > 0 {
		say(r.InFlight, "being handled, or changed by somebody else, at this moment")
	}
	total, order := words.ClaimStates.Count(r.Others)
	for _, state := range order {
		say(total[state], "in state "+state)
	}
	return lines
}

func auditCommand(a *cli.App) *cobra.Command {
	var event, consumer string
	var limit int
	c := &cobra.Command{Use: "audit", Short: "List what operators did, the latest first", Args: cobra.NoArgs, Example: "  millrace dead audit\n  millrace dead audit --consumer labour/notify-family --limit 20"}
	c.Flags().StringVar(&event, "event", "", "only actions on this event, by its whole ID")
	c.Flags().StringVar(&consumer, "consumer", "", "only actions on events of this consumer")
	cli.LimitVar(c, &limit)
	c.PreRunE = func(*cobra.Command, []string) error { return cli.CheckLimit(limit) }
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		found, err := deadletter.ListAudit(ctx, pool, a.Schema, deadletter.AuditListing{EventID: event, Consumer: consumer, AuditPage: deadletter.AuditPage{Limit: limit}})
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(append([]deadletter.Audit{}, found...))
		}
		if len(found) == 0 {
			a.Say("No such actions.")
			return nil
		}
		var rows [][]string
		for _, e := range found {
			rows = append(rows, []string{a.AuditTime(e.At), words.OneLine(e.Actor), e.Action, words.OneLine(e.EventID), e.Consumer, auditDetail(e.Detail)})
		}
		a.Table("TIME ACTOR~ ACTION EVENT# CONSUMER~? DETAIL~", rows)
		return nil
	})
	return a.Prints(c)
}

// auditDetail describes an operator's reason, and the selected events. It omits the hashes of payloads, which are for scripts.
func auditDetail(detail json.RawMessage) string {
	var d struct {
		Note, State, Reason, Error string
		To                         string
		Topic                      string `json:"to_topic"`
		Rows                       int
		Payload                    string `json:"new_payload_sha256"`
		Set, Unset                 []string
	}
	if json.Unmarshal(detail, &d) != nil {
		return words.OneLine(string(detail))
	}
	var parts []string
	add := func(is bool, text string) {
		if is {
			parts = append(parts, text)
		}
	}
	add(d.Note != "", d.Note)
	add(d.To != "", "to "+d.To)
	add(d.Topic != "", "to topic "+d.Topic)
	add(d.Payload != "", "changed the payload")
	add(len(d.Set) > 0, "set "+strings.Join(d.Set, ", "))
	add(len(d.Unset) > 0, "removed "+strings.Join(d.Unset, ", "))
	add(d.Rows > 0, "deleted "+words.Count(d.Rows, "row")+" of this log")
	if d.State != "" {
		was := "was " + words.ClaimStates.Of(d.State)
		if said := words.Why(d.Reason, d.Error); said != "" {
			was += " (" + said + ")"
		}
		parts = append(parts, was)
	}
	return words.OneLine(strings.Join(parts, "; "))
}

func purgeCommand(a *cli.App) *cobra.Command {
	var by deadletter.By
	var olderThan time.Duration
	c := &cobra.Command{
		Use: "purge --older-than AGE", Short: "Discard old dead letters, and delete old rows of the audit log", Args: cobra.NoArgs,
		Long: "Discards dead letters that failed longer ago than AGE, and deletes rows of the audit log that are older. Only the owner of\n" +
			"the tables may do it.",
		Example: "  millrace dead purge --older-than 90d",
	}
	cli.AuditVar(c, &by.Actor, &by.Note)
	cli.AgeVar(c, &olderThan, "older-than", "how long ago they failed, such as 90d or 12h")
	c.PreRunE = func(*cobra.Command, []string) error { return cli.CheckAge("older-than", olderThan) }
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		p, err := deadletter.Purge(ctx, pool, a.Schema, olderThan, by)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(p)
		}
		a.Say("%s discarded, %s of the audit log deleted.", words.Count(p.Events, "dead letter"), words.Count(p.Audit, "row"))
		return nil
	})
	return a.Prints(c)
}
