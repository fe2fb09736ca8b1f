package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/reach"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

func replayCommand(a *cli.App) *cobra.Command {
	var r outboxadmin.ReplayConfig
	var by outboxadmin.By
	var all, dry bool
	c := &cobra.Command{
		Use: "replay {--topic TOPIC | --key KEY | --all | --resume ID}", Short: "Publish archived events again", Args: cobra.NoArgs,
		Long: "Puts archived events into the outbox again, with the same IDs, keys, payloads and metadata, and in the order in which they\n" +
			"were published. Running relays send them. Consumers ignore what they have processed, so only those that have not processed\n" +
			"an event handle it, such as a new consumer, or the consumers of the topic --to. Replayed events are not archived again.\n\n" +
			"Relays archive what they publish if the service's configuration sets outbox.archive.\n\n" +
			"While the outbox holds more than 5,000 events the replay waits for the relays. If it is stopped or killed, --resume\n" +
			"continues it, and no event is left out or put into the outbox twice; \"outbox audit\" lists replays and their IDs.\n" +
			"It needs the privileges of an operator and of a writer.",
		Example: "  millrace outbox replay --topic labour.completed --since 2d --dry-run\n" +
			"  millrace outbox replay --topic labour.completed --since 2026-01-31T14:00:00Z --until 2026-01-31T15:00:00Z\n" +
			"  millrace outbox replay --topic labour.completed --to labour.backfill --rate 500\n  millrace outbox replay --resume 7",
	}
	f := c.Flags()
	f.StringVar(&r.Topic, "topic", "", "only events of this topic")
	f.StringVar(&r.Key, "key", "", "only events of this key")
	f.BoolVar(&all, "all", false, "events of all topics and keys")
	cli.MomentVar(c, &r.Since, "since", "only events that were published at this time or later: a time, or an age such as 2d")
	cli.MomentVar(c, &r.Until, "until", "only events that were published before this time (default: now)")
	f.StringVar(&r.To, "to", "", "send them to this topic (default: each to its own)")
	f.IntVar(&r.Rate, "rate", 0, "at most this many events a second (default: no limit)")
	f.BoolVar(&dry, "dry-run", false, "count the events, and replay none")
	f.Int64Var(&r.Resume, "resume", 0, "continue the replay with this ID")
	cli.AuditVar(c, &by.Actor, &by.Note)
	c.PreRunE = func(*cobra.Command, []string) error { return checkReplay(r, all, dry) }
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		total := int64(-1)
		if r.Resume == 0 {
			a.Progress.Say("Counting archived events")
			topics, err := outboxadmin.CountArchived(ctx, pool, a.Schema, r.ArchiveSelection)
			if err != nil {
				return err
			}
			if len(topics) == 0 {
				return nothingArchived(ctx, a, pool, r.ArchiveSelection)
			}
			if dry {
				return printArchived(a, topics)
			}
			for total = 0; len(topics) > 0; topics = topics[1:] {
				total += topics[0].Events
			}
		}
		return replay(ctx, a, pool, r, by, total)
	})
	return a.Prints(c)
}

// checkReplay returns an error for flags that cannot be combined.
func checkReplay(r outboxadmin.ReplayConfig, all, dry bool) error {
	selected := r.ArchiveSelection != outboxadmin.ArchiveSelection{}
	named := r.Topic != "" || r.Key != ""
	switch {
	case r.Resume < 0:
		return cli.Misuse(fmt.Errorf("--resume is %d: want an ID from \"millrace outbox audit\"", r.Resume))
	case r.Resume > 0 && (selected || all || dry || r.To != ""):
		return cli.Misuse(errors.New("--resume cannot be combined with --topic, --key, --all, --since, --until, --to or --dry-run: the replay keeps what it began with"))
	case all && named:
		return cli.Misuse(errors.New("--all cannot be combined with --topic or --key"))
	case !all && !named && r.Resume == 0:
		return cli.Misuse(errors.New("want --topic, --key, --all or --resume"))
	case r.Rate < 0:
		return cli.Misuse(fmt.Errorf("--rate is %d: want 1 or more events a second", r.Rate))
	case !r.Since.IsZero() && !r.Until.IsZero() && !r.Since.Before(r.Until):
		return cli.Misuse(fmt.Errorf("--since is %s: want a time before --until, which is %s", cli.TimeFlag(r.Since), cli.TimeFlag(r.Until)))
	}
	return nil
}

// nothingArchived returns the reason why no archived event is selected.
func nothingArchived(ctx context.Context, a *cli.App, pool *pgxpool.Pool, s outboxadmin.ArchiveSelection) error {
	r, err := outboxadmin.InspectArchive(ctx, pool, a.Schema)
	switch {
	case err != nil:
		return err
	case r.First == nil:
		return errors.New("the archive is empty: relays archive what they publish from now on if outbox.archive is set in their configuration (RelayConfig.Archive)")
	case !s.Since.IsZero() && s.Since.After(*r.Last):
		return fmt.Errorf("--since is %s: the last archived event was published at %s", cli.TimeFlag(s.Since), cli.TimeFlag(*r.Last))
	case !s.Until.IsZero() && !s.Until.After(*r.First):
		return fmt.Errorf("--until is %s: the archive begins at %s", cli.TimeFlag(s.Until), cli.TimeFlag(*r.First))
	}
	given := cli.GivenFlags([][2]string{{"--topic", s.Topic}, {"--key", s.Key}, {"--since", cli.TimeFlag(s.Since)}, {"--until", cli.TimeFlag(s.Until)}})
	for i := range r.Topics {
		r.Topics[i] = reach.Quoted(r.Topics[i])
	}
	return fmt.Errorf("no archived event matches %s\nThe archive has events from %s to %s. The topics of its latest events are: %s",
		given, cli.TimeFlag(*r.First), cli.TimeFlag(*r.Last), strings.Join(r.Topics, ", "))
}

// printArchived prints what a replay would publish.
func printArchived(a *cli.App, topics []outboxadmin.ArchivedTopic) error {
	if a.JSON {
		return a.PrintJSON(topics)
	}
	var rows [][]string
	for _, t := range topics {
		rows = append(rows, []string{
			words.OneLine(t.Topic), strconv.FormatInt(t.Events, 10), fmt.Sprintf("%.1f MB", float64(t.Bytes)/1e6), t.First.Format(time.RFC3339), t.Last.Format(time.RFC3339),
		})
	}
	a.Table("TOPIC~ EVENTS SIZE FIRST LAST", rows)
	return nil
}

// replay runs a replay and shows its progress. If it ends early, it says how to continue it. total is unknown if it is negative.
func replay(ctx context.Context, a *cli.App, pool *pgxpool.Pool, r outboxadmin.ReplayConfig, by outboxadmin.By, total int64) error {
	a.Progress.Say("Replaying")
	told := false
	r.Progress = func(p outboxadmin.ReplayProgress) {
		text := fmt.Sprintf("Replay %d: %d", p.ID, p.Events)
		if total >= 0 {
			text += fmt.Sprintf(" of %d", total)
		}
		text += " events"
		if p.Waiting {
			text += "; waiting for relays, because the outbox holds more than 5,000 events"
			if !told && !a.ErrTerminal.Is() {
				fmt.Fprintln(a.Stderr, text)
			}
			told = true
		}
		a.Progress.Say(text)
	}
	p, err := outboxadmin.Replay(ctx, pool, a.Schema, r, by)
	if err != nil && p.ID != 0 && (p.Events > 0 || r.Resume == 0) {
		return fmt.Errorf("%w\nReplay %d has not finished, after %s. To continue it, run: %s", err, p.ID, words.Count(p.Events, "event"),
			a.Reach.Command("", "outbox", "replay", "--resume", strconv.FormatInt(p.ID, 10)))
	}
	if err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(p)
	}
	a.Say("Replay %d has finished: %s %s put into the outbox, and relays send %s.", p.ID, words.Count(p.Events, "event"), words.Pick(p.Events, "was", "were"),
		words.Pick(p.Events, "it", "them"))
	return nil
}

func stopCommand(a *cli.App) *cobra.Command {
	var by outboxadmin.By
	c := &cobra.Command{
		Use: "stop ID", ValidArgsFunction: cobra.NoFileCompletions, Short: "Stop a replay of archived events", Args: cli.Argument,
		Long:    "Stops a replay that \"outbox replay\" or the console began, wherever it runs. Events that it has put into the outbox are sent.",
		Example: "  millrace outbox stop 7 --note \"the new consumer is not ready\"",
	}
	cli.AuditVar(c, &by.Actor, &by.Note)
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		id, err := cli.ReplayID(args[0], "millrace outbox audit")
		if err != nil {
			return err
		}
		if err = outboxadmin.StopReplay(ctx, pool, a.Schema, id, by); errors.Is(err, outboxadmin.ErrNoSuchReplay) {
			return fmt.Errorf(`%w: run "millrace outbox audit" to see which there are`, err)
		}
		if err != nil {
			return err
		}
		r, err := outboxadmin.ShowReplay(ctx, pool, a.Schema, id)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(r)
		}
		a.Say("Replay %d was stopped after %s.", id, words.Count(r.Events, "event"))
		a.Say("To continue it, run: %s", a.Reach.Command("", "outbox", "replay", "--resume", args[0]))
		return nil
	})
	return a.Prints(c)
}

func auditCommand(a *cli.App) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use: "audit", Short: "List what operators did, the latest first", Args: cobra.NoArgs,
		Long: "Lists what operators did to the outbox, the latest first: who, when, why, to which and to how many events.", Example: "  millrace outbox audit",
	}
	cli.LimitVar(c, &limit)
	c.PreRunE = func(*cobra.Command, []string) error { return cli.CheckLimit(limit) }
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		found, err := outboxadmin.ListAudit(ctx, pool, a.Schema, outboxadmin.AuditPage{Limit: limit})
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(append([]outboxadmin.Audit{}, found...))
		}
		if len(found) == 0 {
			a.Say("No such actions.")
			return nil
		}
		var rows [][]string
		for _, e := range found {
			rows = append(rows, []string{a.AuditTime(e.At), words.OneLine(e.Actor), e.Action, strconv.FormatInt(e.Events, 10), auditDetail(e)})
		}
		a.Table("TIME ACTOR~ ACTION EVENTS DETAIL~", rows)
		return nil
	})
	return a.Prints(c)
}

// auditDetail describes what an operator acted on, and why.
func auditDetail(e outboxadmin.Audit) string {
	var d struct {
		Note, Topic, Key, Group, To string
		EventIDs                    []string `json:"event_ids"`
		Replay                      int64
		Since, Until                *time.Time
	}
	if json.Unmarshal(e.Detail, &d) != nil {
		return words.OneLine(string(e.Detail))
	}
	var parts []string
	add := func(is bool, text string) {
		if is {
			parts = append(parts, text)
		}
	}
	add(d.Note != "", d.Note)
	add(d.Topic != "", "topic "+d.Topic)
	add(d.Key != "", "key "+d.Key)
	add(d.Group != "", "group "+d.Group)
	add(len(d.EventIDs) > 0, "events "+strings.Join(d.EventIDs, ", "))
	if d.Since != nil {
		parts = append(parts, "since "+d.Since.Format(time.RFC3339))
	}
	if d.Until != nil {
		parts = append(parts, "until "+d.Until.Format(time.RFC3339))
	}
	add(d.To != "", "to "+d.To)
	add(d.Replay != 0, "replay "+strconv.FormatInt(d.Replay, 10))
	add(e.Unfinished, fmt.Sprintf("has not finished: \"outbox replay --resume %d\" continues it", e.ID))
	return words.OneLine(strings.Join(parts, "; "))
}
