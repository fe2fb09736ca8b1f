package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
)

// explanation is where an event is, and why. Times are the database's.
type explanation struct {
	EventID string     `json:"event_id"`
	Minted  *time.Time `json:"minted,omitempty"` // where the ID tells
	Due     *time.Time `json:"due,omitempty"`    // of a delayed one
	Topic   string     `json:"topic,omitempty"`
	Key     string     `json:"key,omitempty"`
	Trace   string     `json:"trace,omitempty"`
	Cause   string     `json:"cause,omitempty"` // the event whose handler published it
	Now     time.Time  `json:"now"`
	Known   bool       `json:"known"` // something is known of it
	Stages  []stage    `json:"stages"`
}

// stage is what is known at one place of an event's way.
type stage struct {
	Place string   `json:"place"`        // outbox, copy, broker, claim, effect, output; event where nothing is known
	Of    string   `json:"of,omitempty"` // the consumer, the effect's key, the copy's topic, the output's ID
	State string   `json:"state"`
	Why   string   `json:"why"`
	Next  []string `json:"next,omitempty"` // commands that an operator may want now
}

const explainUsage = `Shows where an event is, and why: in the outbox, at the broker, at each consumer, and its effects in the ledger; and what an
operator can do about it. Exits with 1 if nothing is known about the event.

It asks the database alone: what the broker holds is concluded from the outbox and the consumers. Effects are those whose
keys contain the event's ID. Outputs are events that its handlers published through the outbox while they claimed it, and
that are not sent yet or are archived. Who discarded an event is known until "dead purge" deletes the audit log.

Outbox and ledger have no index on event IDs: with millions of rows this takes seconds. It blocks nobody.`

func (a *app) explain() *cobra.Command {
	var due string
	c := a.database(&cobra.Command{
		Use: "explain EVENT-ID", ValidArgsFunction: cobra.NoFileCompletions, Short: "Show where an event is, and why", Long: explainUsage, Args: argument,
		Example: "  millrace explain 0198c0de…3f2a\n  millrace explain 0198c0de-0000-7000-8000-000000003f2a --due 2026-03-01T10:00:00.123456Z",
	})
	c.Flags().StringVar(&due, "due", "", "when a delayed event was due, such as 2026-03-01T10:00:00.123456Z; finds it after its delivery")
	var at time.Time
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if args[0] == "" {
			return usageError{errors.New("the event ID is empty")}
		}
		at, err = parseDue(due)
		return err
	}
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		there, err := a.installed(ctx, pool)
		if err != nil {
			return err
		}
		var queries []string
		if there["outbox"] {
			queries = append(queries, "ids_outbox")
		}
		if there["claim"] {
			queries = append(queries, "ids_consumers", "ids_completed")
		}
		id, err := a.wholeID(ctx, pool, args[0], queries...)
		if err != nil {
			return err
		}
		found, err := a.identify(ctx, pool, id, at)
		if err != nil {
			return err
		}
		e := found.explain()
		if a.json {
			err = a.printJSON(e)
		} else {
			a.printExplanation(e)
		}
		if err == nil && !e.Known {
			return exitStatus(exitFailed)
		}
		return err
	})
	return a.prints(c)
}

func parseDue(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return at, usageError{fmt.Errorf("--due is %q: want a time such as 2026-03-01T10:00:00.123456Z", text)}
	}
	return at, nil
}

// minted is the time in a UUIDv7.
func minted(eventID string) *time.Time {
	id, err := uuid.Parse(eventID)
	if err != nil || id.Version() != 7 {
		return nil
	}
	seconds, nanos := id.Time().UnixTime()
	at := time.Unix(seconds, nanos)
	return &at
}

func (a *app) printExplanation(e explanation) {
	line := func(name, value string) {
		if value != "" {
			a.say("%s %s", a.terminal.Dim(fmt.Sprintf("%-7s", name)), value)
		}
	}
	line("event", oneLine(e.EventID))
	if e.Minted != nil {
		line("created", when(e.Now, *e.Minted))
	}
	line("topic", oneLine(e.Topic))
	line("key", oneLine(e.Key))
	if e.Due != nil {
		line("due", when(e.Now, *e.Due))
	}
	line("trace", oneLine(e.Trace))
	line("cause", oneLine(e.Cause))
	for _, s := range e.Stages {
		a.say("\n%s %s", a.terminal.Bold(strings.TrimSpace(s.Place+" "+oneLine(s.Of))+":"), a.paintStage(s.State))
		a.terminal.Paragraph(a.stdout, 2, "", a.terminal.Dim, oneLine(s.Why))
		for _, command := range s.Next {
			a.say("      %s", command)
		}
	}
}

// paintStage colours a stage's state.
func (a *app) paintStage(state string) string {
	word, _, _ := strings.Cut(state, " ")
	switch word {
	case "dead", "doubt", "suspect", "unknown":
		return a.terminal.Red(state)
	case "retrying", "blocked", "pending", "delayed":
		return a.terminal.Yellow(state)
	case "completed", "done", "archived", "received":
		return a.terminal.Green(state)
	}
	return state
}

// when is a time for people, relative and absolute.
func when(now, at time.Time) string {
	absolute := " (" + at.UTC().Format(time.RFC3339) + ")"
	switch d := at.Sub(now); {
	case d >= time.Second:
		return "in " + output.Duration(d) + absolute
	case d > -time.Second:
		return "just now" + absolute
	default:
		return output.Duration(-d) + " ago" + absolute
	}
}
