package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
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

// topicState says in words why events of a topic wait.
func topicState(r *outboxadmin.Report, t outboxadmin.TopicReport) (state, why string) {
	if t.State == "" {
		return "", ""
	}
	state = t.State + " for " + output.Duration(r.Age(t.Since))
	switch t.State {
	case outboxadmin.TopicPaused:
		var parts []string
		if t.By != "" {
			parts = append(parts, "by "+oneLine(t.By))
		}
		if t.Reason != "" {
			parts = append(parts, oneLine(t.Reason))
		}
		why = strings.Join(parts, ": ")
	case outboxadmin.TopicFailing:
		why = oneLine(t.Reason)
	case outboxadmin.TopicSlow:
		why = "its batches take long: events wait for their share"
	}
	return state, why
}

// topics finds topics whose events wait for a person or for the broker.
func (d *doctor) topics(r *outboxadmin.Report) {
	for _, t := range r.Topics {
		since := output.Duration(r.Age(t.Since))
		switch _, why := topicState(r, t); {
		case t.State == outboxadmin.TopicPaused && t.Pending == 0:
			d.note("outbox", fmt.Sprintf("topic %s has been paused for %s", t.Topic, since))
		case t.State == outboxadmin.TopicPaused:
			d.find("outbox", fmt.Sprintf("topic %s has been paused for %s, and %s", t.Topic, since, topicWaits(t)),
				strings.TrimSpace("an operator paused it "+why), d.command(t.Topic, "outbox", "topic", "resume"))
		case t.State == outboxadmin.TopicFailing && r.Age(t.Since) > d.limits.lag:
			d.find("outbox", fmt.Sprintf("the broker has taken no event of topic %s for %s, and %s", t.Topic, since, topicWaits(t)),
				"the publisher's last error: "+why, "repair the topic or the relay's right to write to it, then relays go on; see: "+d.withBroker("doctor"))
		}
	}
}

func topicWaits(t outboxadmin.TopicReport) string {
	return fmt.Sprintf("%s %s waiting", output.Count(t.Pending, "event"), output.Pick(t.Pending, "is", "are"))
}
