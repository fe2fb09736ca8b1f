package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

func topicCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "topic", Short: "Pause, resume, redirect or discard the events of a topic", Args: cobra.NoArgs, RunE: cli.NeedsCommand}
	c.AddCommand(pauseCommand(a), resumeCommand(a), redirectCommand(a), discardTopicCommand(a))
	return c
}

func pauseCommand(a *cli.App) *cobra.Command {
	return topicActionCommand(a, &cobra.Command{
		Use: "pause TOPIC", Short: "Publish no more events of a topic until it is resumed",
		Long: "Makes relays publish no more events of a topic, also relays that start later. What a relay is sending at this moment is still\n" +
			"published. The events stay in the outbox and keep their order; new ones are added. Other topics go on; their events wait\n" +
			"only behind an earlier event of their own key.",
		Example: "  millrace outbox topic pause labour.completed --note \"its consumer is being repaired\"",
	}, func(ctx context.Context, pool *pgxpool.Pool, topic string, by outboxadmin.By) (string, error) {
		return fmt.Sprintf("Topic %s is paused. Its events wait until: %s", words.OneLine(topic), a.Reach.Command(topic, "outbox", "topic", "resume")),
			outboxadmin.PauseTopic(ctx, pool, a.Schema, topic, by)
	})
}

func resumeCommand(a *cli.App) *cobra.Command {
	return topicActionCommand(a, &cobra.Command{
		Use: "resume TOPIC", Short: "Publish the events of a paused topic again", Example: "  millrace outbox topic resume labour.completed",
	}, func(ctx context.Context, pool *pgxpool.Pool, topic string, by outboxadmin.By) (string, error) {
		err := outboxadmin.ResumeTopic(ctx, pool, a.Schema, topic, by)
		if errors.Is(err, outboxadmin.ErrNotSet) {
			err = fmt.Errorf("topic %s is not paused: \"millrace outbox status\" lists those that are", words.OneLine(topic))
		}
		return fmt.Sprintf("Topic %s is resumed.", words.OneLine(topic)), err
	})
}

func redirectCommand(a *cli.App) *cobra.Command {
	var to string
	var off bool
	c := topicActionCommand(a, &cobra.Command{
		Use: "redirect TOPIC {--to TOPIC | --off}", Short: "Publish the events of a topic to another topic",
		Long: "Makes relays publish the events of a topic to another topic: those that are in the outbox, those that failed, and new ones,\n" +
			"until --off. Each key keeps its order, also with the events of the other topic. The events keep their IDs, so a consumer of\n" +
			"both topics handles each once.",
		Example: "  millrace outbox topic redirect labour.completed --to labour.completed.v2\n  millrace outbox topic redirect labour.completed --off",
	}, func(ctx context.Context, pool *pgxpool.Pool, topic string, by outboxadmin.By) (string, error) {
		if to != "" {
			return fmt.Sprintf("Events of topic %s are published to %s until: %s", words.OneLine(topic), words.OneLine(to), a.Reach.Command(topic, "outbox", "topic", "redirect", "--off")),
				outboxadmin.RedirectTopic(ctx, pool, a.Schema, topic, to, by)
		}
		err := outboxadmin.EndRedirect(ctx, pool, a.Schema, topic, by)
		if errors.Is(err, outboxadmin.ErrNotSet) {
			err = fmt.Errorf("topic %s is not redirected: \"millrace outbox status\" lists those that are", words.OneLine(topic))
		}
		return fmt.Sprintf("Events of topic %s are published to it again.", words.OneLine(topic)), err
	})
	c.Flags().StringVar(&to, "to", "", "the topic that the events are published to")
	c.Flags().BoolVar(&off, "off", false, "end the redirect")
	c.PreRunE = func(_ *cobra.Command, args []string) error {
		switch {
		case off == (to != ""):
			return cli.Misuse(errors.New("want either --to or --off"))
		case to == args[0]:
			return cli.Misuse(fmt.Errorf("--to is %q: want another topic", to))
		}
		return nil
	}
	return c
}

func discardTopicCommand(a *cli.App) *cobra.Command {
	var (
		s   outboxadmin.PendingSelection
		by  outboxadmin.By
		all bool
	)
	c := &cobra.Command{
		Use: "discard TOPIC {--older-than AGE | --all}", Short: "Discard pending events of a paused topic", Args: cli.Argument, ValidArgsFunction: cobra.NoFileCompletions,
		Long: "Discards events of a paused topic that no relay has published. First it waits until relays have no such event in flight. Events\n" +
			"that are discarded are kept as discarded, and can still be retried, until \"outbox purge\" deletes them. Resume the topic\n" +
			"afterwards: then later events of their keys go on. Failed events are discarded by \"outbox discard --topic\".",
		Example: "  millrace outbox topic discard labour.completed --older-than 1d\n  millrace outbox topic discard labour.completed --all --note \"its consumer is gone\"",
	}
	cli.AgeVar(c, &s.OlderThan, "older-than", "only events that were written longer ago than this, such as 1d or 12h")
	c.Flags().Int64Var(&s.Limit, "limit", 0, "discard at most this many; 0: no limit")
	c.Flags().BoolVar(&all, "all", false, "all that are pending now")
	cli.AuditVar(c, &by.Actor, &by.Note)
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		switch {
		case all == (s.OlderThan > 0):
			return cli.Misuse(errors.New("want either --older-than or --all"))
		case s.Limit < 0:
			return cli.Misuse(fmt.Errorf("--limit is %d: want 1 or more, or 0 for no limit", s.Limit))
		}
		return nil
	}
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		s.Topic = args[0]
		n, err := outboxadmin.DiscardPending(ctx, pool, a.Schema, s, by)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(map[string]int64{"discarded": n})
		}
		a.Say("%s of topic %s %s discarded.", words.Count(n, "pending event"), words.OneLine(s.Topic), words.Pick(n, "was", "were"))
		return nil
	})
	return a.Prints(c)
}

// topicActionCommand completes a command that changes a topic's settings. It prints the text that do returns.
func topicActionCommand(a *cli.App, c *cobra.Command, do func(ctx context.Context, pool *pgxpool.Pool, topic string, by outboxadmin.By) (string, error)) *cobra.Command {
	var by outboxadmin.By
	cli.AuditVar(c, &by.Actor, &by.Note)
	c.Args, c.ValidArgsFunction = cli.Argument, cobra.NoFileCompletions
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		text, err := do(ctx, pool, args[0], by)
		if err != nil {
			return err
		}
		if !a.JSON {
			a.Say("%s", text)
			return nil
		}
		r, err := outboxadmin.Inspect(ctx, pool, a.Schema)
		if err != nil {
			return err
		}
		return a.PrintJSON(r.Topic(args[0]))
	})
	return a.Prints(c)
}
