package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/doctor"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

const doctorUsage = `Finds what is wrong with the database, the outbox, consumers, effects and, with --broker or --config, the broker. Each finding
has a symptom, a cause and a remedy. Tell it by flags what it cannot see: the --pool and --concurrency of a service, its
--retention, and who subscribes to what.

For a service without a database (postgres.disabled) it asks the broker alone.

Exit codes: 0 without findings, or with notes only; 1 with findings; 2 if the command line is wrong or the database cannot be
reached. It changes nothing, takes no locks, and needs the privileges of an operator ("millrace migrate grants --operator").
Only members of pg_read_all_stats see transactions of other roles.

Checks that --ignore accepts: ` // and their names

func doctorCommand(a *cli.App) *cobra.Command {
	var (
		limits    doctor.Limits
		ignore    []string
		subscribe []string
	)
	c := a.Database(&cobra.Command{
		Use: "doctor", Short: "Find what is wrong, and what to do about it", Args: cobra.NoArgs, Long: doctorUsage + strings.Join(doctor.Checks(), ", ") + ".",
		Example: "  millrace doctor\n  millrace doctor --config millrace.yaml --subscribe labour.notify-family=labour.completed\n  millrace doctor --pool 30 --concurrency 20 --processes 4 --relay-inside",
	})
	f := c.Flags()
	f.DurationVar(&limits.Lag, "max-lag", time.Minute, "how long an event may wait in the outbox, or be overdue for a retry")
	f.DurationVar(&limits.Transaction, "max-transaction", 15*time.Minute, "how long a transaction may keep autovacuum from removing dead rows")
	cli.AgeVar(c, &limits.Retention, "retention", "for how long consumers keep records of processed events (default: the configuration's claim.retention, or 14d)")
	cli.AgeVar(c, &limits.Horizon, "horizon", "how long after its creation an event may be delivered (default: the configuration's claim.redelivery_horizon, or 7d); with --subscribe the broker is asked, too")
	f.Int64Var(&limits.Backlog, "max-backlog", 10_000, "how many messages may wait for a consumer at the broker (Kafka only)")
	f.IntVar(&limits.Pool, "pool", 0, "connections in the pool of one process of a service (pool_max_conns); 0: not checked")
	f.IntVar(&limits.Concurrency, "concurrency", 0, "messages that one process handles at once, over all its subscriptions")
	f.IntVar(&limits.Processes, "processes", 1, "processes of that service")
	f.BoolVar(&limits.RelayInside, "relay-inside", false, "that service runs a relay, too")
	f.StringSliceVar(&subscribe, "subscribe", nil, "CONSUMER=TOPIC, a subscription to check at the broker; may be repeated")
	f.StringSliceVar(&ignore, "ignore", nil, "checks to ignore, separated by commas")
	cli.OneOf(c, "ignore", doctor.Checks()...)
	a.Broker.Flags(c)
	c.RunE = func(_ *cobra.Command, _ []string) error {
		for _, name := range ignore {
			if !slices.Contains(doctor.Checks(), name) {
				return cli.Misuse(fmt.Errorf("--ignore has %q: want %s", name, words.Either(doctor.Checks())))
			}
		}
		subscriptions, err := parseSubscriptions(subscribe, a.BrokerName())
		if err != nil {
			return cli.Misuse(err)
		}
		var kept claim.Config
		if a.Config != nil {
			kept = a.Config.Claim.Config
		}
		limits.Retention = cmp.Or(limits.Retention, kept.Retention, claim.DefaultRetention)
		limits.Horizon = cmp.Or(limits.Horizon, kept.RedeliveryHorizon, claim.DefaultRedeliveryHorizon)
		asks := (a.BrokerName() == "pubsub" || a.BrokerName() == "kafka") && !slices.Contains(ignore, "broker")
		if asks && a.Config == nil {
			if err := a.Load(); err != nil { // this configuration has no broker
				return cli.Misuse(err)
			}
		}
		ctx, stop := cli.UntilSignal()
		defer stop()
		defer a.ShowProgress("Connecting to the database")()
		cfg := doctor.Config{Schema: a.Schema, Limits: limits, Ignore: ignore, Progress: a.Progress.Say, Log: a.Config != nil && a.Config.Outbox.Store == outbox.Log}
		cfg.Broker = doctor.Broker{Name: a.BrokerName(), Words: a.Broker.Words(), How: cli.BrokerFlags[a.BrokerName()], Subscriptions: subscriptions}
		if asks {
			cfg.Broker.Open = func(ctx context.Context, patience time.Duration) (transport.Transport, error) {
				return a.OpenBroker(ctx, slog.New(slog.DiscardHandler), patience)
			}
		}
		if a.WithoutPostgres() {
			cfg.Reach = a.Reach
			return reportFindings(a, doctor.ExamineBroker(ctx, cfg))
		}
		examine := func() error {
			pool, err := a.Connect(ctx)
			if err != nil {
				return err
			}
			defer pool.Close()
			cfg.Reach = a.Reach
			found, err := doctor.Examine(ctx, pool, cfg)
			if err != nil {
				return err
			}
			cfg.Broker.Open = nil // only the first of several databases checks the broker
			return reportFindings(a, found)
		}
		if len(a.Fleet) > 0 {
			return a.ForEach(examine)
		}
		return examine()
	}
	return a.Prints(c)
}

func parseSubscriptions(subscribe []string, broker string) (all []doctor.Subscription, err error) {
	if len(subscribe) > 0 && broker != "pubsub" && broker != "kafka" {
		err = errors.New("--subscribe needs --broker pubsub or kafka, or a configuration with one of them")
	}
	for _, s := range subscribe {
		consumer, topic, found := strings.Cut(s, "=")
		if !found || consumer == "" || topic == "" {
			err = errors.Join(err, fmt.Errorf("--subscribe has %q: want CONSUMER=TOPIC", s))
		}
		all = append(all, doctor.Subscription{Consumer: consumer, Topic: topic})
	}
	return all, err
}

func reportFindings(a *cli.App, found []doctor.Finding) error {
	wrong := len(found)
	for _, f := range found {
		if f.Note {
			wrong--
		}
	}
	if a.JSON {
		if err := a.PrintJSON(append([]doctor.Finding{}, found...)); err != nil {
			return err
		}
	} else {
		printFindings(a, found, wrong)
	}
	if wrong > 0 {
		return cli.ExitStatus(cli.ExitFailed)
	}
	return nil
}

func printFindings(a *cli.App, found []doctor.Finding, wrong int) {
	if a.Several() {
		a.Say("%s", a.Terminal.Dim("database "+words.OneLine(a.Name)))
	}
	const indent = len("  remedy  ")
	for _, f := range found {
		if f.Note {
			continue
		}
		a.Terminal.Paragraph(a.Stdout, len(f.Check)+len(": "), f.Check+":", a.Terminal.Red, words.OneLine(f.Symptom))
		a.Terminal.Paragraph(a.Stdout, indent, "  cause", a.Terminal.Dim, words.OneLine(f.Cause))
		a.Say("%s  %s", a.Terminal.Dim("  remedy"), words.OneLine(f.Remedy)) // not wrapped, so that its commands can be copied
	}
	if wrong == 0 {
		a.Say("%s", a.Terminal.Green("No problems found."))
	} else {
		a.Say("\n%s found.", words.Count(wrong, "problem"))
	}
	for _, f := range found {
		if f.Note {
			a.Terminal.Paragraph(a.Stdout, len("Note: "), "Note:", a.Terminal.Dim, words.OneLine(f.Symptom)+".")
		}
	}
}
