package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
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

const explainUsage = `Tells where an event is and why: in the outbox, at the broker, with each consumer, its effects in the ledger; and what an
operator can do about it. Exits with 1 when nothing is known of the event.

It reads the database alone. What the broker holds is concluded from both ends. Effects are those whose key contains the event's ID.
Outputs are events that its handlers published through the outbox, under a claim, as far as they are not sent yet or relays archive.
What was discarded is told from what operators did, as long as that is kept ("dead purge" forgets it).

Outbox and ledger have no index on event IDs: with millions of rows in them the command takes seconds, and holds nobody up.`

func (a *app) explain() *cobra.Command {
	var due string
	c := a.database(&cobra.Command{Use: "explain EVENT-ID", ValidArgsFunction: cobra.NoFileCompletions, Short: "Where an event is, and why", Long: explainUsage, Args: cobra.ExactArgs(1)})
	c.Flags().StringVar(&due, "due", "", "when a delayed event was due, as "+time.RFC3339Nano+", where it is neither in the outbox nor archived")
	var at time.Time
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if args[0] == "" {
			return usageError{errors.New("the event's ID is empty")}
		}
		at, err = parseDue(due)
		return err
	}
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		found, err := a.identify(ctx, pool, args[0], at)
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
	say := func(name, value string) {
		if value != "" {
			fmt.Fprintf(a.stdout, "%-7s  %s\n", name, value)
		}
	}
	about := oneLine(e.EventID)
	if e.Minted != nil {
		about += ", minted " + when(e.Now, *e.Minted)
	}
	say("event", about)
	say("topic", oneLine(e.Topic))
	say("key", oneLine(e.Key))
	if e.Due != nil {
		say("due", when(e.Now, *e.Due))
	}
	say("trace", oneLine(e.Trace))
	say("cause", oneLine(e.Cause))
	fmt.Fprintln(a.stdout)
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for _, s := range e.Stages {
		fmt.Fprintf(w, "%s\t%s:\t%s\n", strings.TrimSpace(s.Place+" "+oneLine(s.Of)), s.State, oneLine(s.Why))
		for _, command := range s.Next {
			fmt.Fprintf(w, "\t\t> %s\n", command)
		}
	}
	_ = w.Flush() // nobody reads, then
}

// when is a time for people, relative and absolute.
func when(now, at time.Time) string {
	absolute := " (" + at.UTC().Format(time.RFC3339) + ")"
	if d := at.Sub(now); d > 0 {
		return "in " + ago(d) + absolute
	}
	return ago(now.Sub(at)) + " ago" + absolute
}
