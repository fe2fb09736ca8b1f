package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

func (a *app) outboxTopic() *cobra.Command {
	c := &cobra.Command{Use: "topic", Short: "Pause or resume the events of a topic", Args: cobra.NoArgs, RunE: needsCommand}
	c.AddCommand(a.outboxTopicPause(), a.outboxTopicResume())
	return c
}

func (a *app) outboxTopicPause() *cobra.Command {
	var p outboxadmin.Pause
	c := &cobra.Command{
		Use: "pause TOPIC", Short: "Publish no more events of a topic until it is resumed", Args: argument, ValidArgsFunction: cobra.NoFileCompletions,
		Long: "Makes relays publish no more events of a topic, also relays that start later. What a relay is sending at this moment is still\n" +
			"published. The events stay in the outbox and keep their order; new ones are added. Other topics go on; their events wait\n" +
			"only behind an earlier event of their own key.",
		Example: "  millrace outbox topic pause labour.completed --reason \"consumer is being migrated\"",
	}
	c.Flags().StringVar(&p.Reason, "reason", "", "why, for other operators")
	c.Flags().StringVar(&p.By, "actor", somebody(), "who does it, for other operators")
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		p.Topic = args[0]
		if err := outboxadmin.PauseTopic(ctx, pool, a.schema, p); err != nil {
			return err
		}
		if a.json {
			return a.printJSON(map[string]any{"topic": p.Topic, "paused": true})
		}
		a.say("Topic %s is paused. Its events wait until: %s", oneLine(p.Topic), a.reach.command(p.Topic, "outbox", "topic", "resume"))
		return nil
	})
	return a.prints(c)
}

func (a *app) outboxTopicResume() *cobra.Command {
	c := &cobra.Command{
		Use: "resume TOPIC", Short: "Publish the events of a paused topic again", Args: argument, ValidArgsFunction: cobra.NoFileCompletions,
		Example: "  millrace outbox topic resume labour.completed",
	}
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		if err := outboxadmin.ResumeTopic(ctx, pool, a.schema, args[0]); err != nil {
			return err
		}
		if a.json {
			return a.printJSON(map[string]any{"topic": args[0], "paused": false})
		}
		a.say("Topic %s is resumed.", oneLine(args[0]))
		return nil
	})
	return a.prints(c)
}
