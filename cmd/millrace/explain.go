package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/explain"
	"github.com/millrace-go/millrace/internal/words"
)

const explainUsage = `Shows where an event is, and why: in the outbox, at the broker, at each consumer, and its effects in the ledger; and what an
operator can do about it. Exits with 1 if nothing is known about the event.

It asks the database alone: what the broker holds is concluded from the outbox and the consumers. Effects are those whose
keys contain the event's ID. Outputs are events that its handlers published through the outbox while they claimed it, and
that are not sent yet or are archived. Who discarded an event is known until "dead purge" deletes the audit log.

Outbox and ledger have no index on event IDs: with millions of rows this takes seconds. It blocks nobody.`

func explainCommand(a *cli.App) *cobra.Command {
	var due string
	c := a.Database(&cobra.Command{
		Use: "explain EVENT-ID", ValidArgsFunction: cobra.NoFileCompletions, Short: "Show where an event is, and why", Long: explainUsage, Args: cli.Argument,
		Example: "  millrace explain 0198c0de…3f2a\n  millrace explain 0198c0de-0000-7000-8000-000000003f2a --due 2026-03-01T10:00:00.123456Z",
	})
	c.Flags().StringVar(&due, "due", "", "when a delayed event was due, such as 2026-03-01T10:00:00.123456Z; finds it after its delivery")
	var at time.Time
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if args[0] == "" {
			return cli.Misuse(errors.New("the event ID is empty"))
		}
		at, err = parseDue(due)
		return err
	}
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		e, err := explain.Explain(ctx, pool, a.Schema, args[0], at, a.Reach, 0)
		if err != nil {
			return err
		}
		if a.JSON {
			err = a.PrintJSON(e)
		} else {
			printExplanation(a, e)
		}
		if err == nil && !e.Known {
			return cli.ExitStatus(cli.ExitFailed)
		}
		return err
	})
	return a.Prints(c)
}

func parseDue(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return at, cli.Misuse(fmt.Errorf("--due is %q: want a time such as 2026-03-01T10:00:00.123456Z", text))
	}
	return at, nil
}

func printExplanation(a *cli.App, e explain.Explanation) {
	line := func(name, value string) {
		if value != "" {
			a.Say("%s %s", a.Terminal.Dim(fmt.Sprintf("%-7s", name)), value)
		}
	}
	line("event", words.OneLine(e.EventID))
	if e.Minted != nil {
		line("created", words.When(e.Now, *e.Minted))
	}
	line("topic", words.OneLine(e.Topic))
	line("key", words.OneLine(e.Key))
	if e.Due != nil {
		line("due", words.When(e.Now, *e.Due))
	}
	line("trace", words.OneLine(e.Trace))
	line("cause", words.OneLine(e.Cause))
	for _, s := range e.Stages {
		a.Say("\n%s %s", a.Terminal.Bold(strings.TrimSpace(s.Place+" "+words.OneLine(s.Of))+":"), paintStage(a, s.State))
		a.Terminal.Paragraph(a.Stdout, 2, "", a.Terminal.Dim, words.OneLine(s.Why))
		for _, command := range s.Next {
			a.Say("      %s", command)
		}
	}
}

// paintStage colours a stage's state.
func paintStage(a *cli.App, state string) string {
	word, _, _ := strings.Cut(state, " ")
	switch word {
	case "dead", "doubt", "suspect", "unknown":
		return a.Terminal.Red(state)
	case "retrying", "blocked", "pending", "delayed":
		return a.Terminal.Yellow(state)
	case "completed", "done", "archived", "received":
		return a.Terminal.Green(state)
	}
	return state
}
