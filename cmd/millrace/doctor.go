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

	"github.com/millrace-go/millrace/internal/doctor"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/transport"
)

const doctorUsage = `Finds what is wrong with the database, the outbox, consumers, effects and, with --broker or --config, the broker. Each finding
has a symptom, a cause and a remedy. Tell it by flags what it cannot see: the --pool and --concurrency of a service, its
--retention, and who subscribes to what.

Exit codes: 0 without findings, or with notes only; 1 with findings; 2 if the command line is wrong or the database cannot be
reached. It changes nothing, takes no locks, and needs the privileges of an operator ("millrace migrate grants --operator").
Only members of pg_read_all_stats see transactions of other roles.

Checks that --ignore accepts: ` // and their names

func (a *app) doctor() *cobra.Command {
	var (
		limits    doctor.Limits
		ignore    []string
		subscribe []string
	)
	c := a.database(&cobra.Command{
		Use: "doctor", Short: "Find what is wrong, and what to do about it", Args: cobra.NoArgs, Long: doctorUsage + strings.Join(doctor.Checks(), ", ") + ".",
		Example: "  millrace doctor\n  millrace doctor --config millrace.yaml --subscribe labour.notify-family=labour.completed\n  millrace doctor --pool 30 --concurrency 20 --processes 4 --relay-inside",
	})
	f := c.Flags()
	f.DurationVar(&limits.Lag, "max-lag", time.Minute, "how long an event may wait in the outbox, or be overdue for a retry")
	f.DurationVar(&limits.Transaction, "max-transaction", 15*time.Minute, "how long a transaction may keep autovacuum from removing dead rows")
	ageVar(c, &limits.Retention, "retention", "for how long consumers keep records of processed events (default: the configuration's claim.retention, or 14d)")
	ageVar(c, &limits.Horizon, "horizon", "how long after its creation an event may be delivered (default: the configuration's claim.redelivery_horizon, or 7d); with --subscribe the broker is asked, too")
	f.Int64Var(&limits.Backlog, "max-backlog", 10_000, "how many messages may wait for a consumer at the broker (Kafka only)")
	f.IntVar(&limits.Pool, "pool", 0, "connections in the pool of one process of a service (pool_max_conns); 0: not checked")
	f.IntVar(&limits.Concurrency, "concurrency", 0, "messages that one process handles at once, over all its subscriptions")
	f.IntVar(&limits.Processes, "processes", 1, "processes of that service")
	f.BoolVar(&limits.RelayInside, "relay-inside", false, "that service runs a relay, too")
	f.StringSliceVar(&subscribe, "subscribe", nil, "CONSUMER=TOPIC, a subscription to check at the broker; may be repeated")
	f.StringSliceVar(&ignore, "ignore", nil, "checks to ignore, separated by commas")
	oneOf(c, "ignore", doctor.Checks()...)
	a.broker.flags(c)
	c.RunE = func(_ *cobra.Command, _ []string) error {
		for _, name := range ignore {
			if !slices.Contains(doctor.Checks(), name) {
				return usageError{fmt.Errorf("--ignore has %q: want %s", name, words.Either(doctor.Checks()))}
			}
		}
		subscriptions, err := parseSubscriptions(subscribe, a.brokerName())
		if err != nil {
			return usageError{err}
		}
		var kept claim.Config
		if a.cfg != nil {
			kept = a.cfg.Claim.Config
		}
		limits.Retention = cmp.Or(limits.Retention, kept.Retention, claim.DefaultRetention)
		limits.Horizon = cmp.Or(limits.Horizon, kept.RedeliveryHorizon, claim.DefaultRedeliveryHorizon)
		asks := (a.brokerName() == "pubsub" || a.brokerName() == "kafka") && !slices.Contains(ignore, "broker")
		if asks && a.cfg == nil {
			if err := a.load(); err != nil { // which says nothing about the broker
				return usageError{err}
			}
		}
		ctx, stop := untilSignal()
		defer stop()
		defer a.showProgress("Connecting to the database")()
		cfg := doctor.Config{Schema: a.schema, Limits: limits, Ignore: ignore, Progress: a.progress.Say}
		cfg.Broker = doctor.Broker{Name: a.brokerName(), Words: a.broker.words(), How: brokerFlags[a.brokerName()], Subscriptions: subscriptions}
		if asks {
			cfg.Broker.Open = func(ctx context.Context, patience time.Duration) (transport.Transport, error) {
				return a.openBroker(ctx, slog.New(slog.DiscardHandler), patience)
			}
		}
		examine := func() error {
			pool, err := a.connect(ctx)
			if err != nil {
				return err
			}
			defer pool.Close()
			cfg.Reach = a.reach
			found, err := doctor.Examine(ctx, pool, cfg)
			if err != nil {
				return err
			}
			cfg.Broker.Open = nil // of several databases the first has it asked
			return a.reportFindings(found)
		}
		if len(a.fleet) > 0 {
			return a.forEach(examine)
		}
		return examine()
	}
	return a.prints(c)
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

func (a *app) reportFindings(found []doctor.Finding) error {
	wrong := len(found)
	for _, f := range found {
		if f.Note {
			wrong--
		}
	}
	if a.json {
		if err := a.printJSON(append([]doctor.Finding{}, found...)); err != nil {
			return err
		}
	} else {
		a.printFindings(found, wrong)
	}
	if wrong > 0 {
		return exitStatus(exitFailed)
	}
	return nil
}

func (a *app) printFindings(found []doctor.Finding, wrong int) {
	if a.gathered != nil {
		a.say("%s", a.terminal.Dim("database "+words.OneLine(a.name)))
	}
	const indent = len("  remedy  ")
	for _, f := range found {
		if f.Note {
			continue
		}
		a.terminal.Paragraph(a.stdout, len(f.Check)+len(": "), f.Check+":", a.terminal.Red, words.OneLine(f.Symptom))
		a.terminal.Paragraph(a.stdout, indent, "  cause", a.terminal.Dim, words.OneLine(f.Cause))
		a.say("%s  %s", a.terminal.Dim("  remedy"), words.OneLine(f.Remedy)) // not wrapped: its commands are to be copied
	}
	if wrong == 0 {
		a.say("%s", a.terminal.Green("No problems found."))
	} else {
		a.say("\n%s found.", words.Count(wrong, "problem"))
	}
	for _, f := range found {
		if f.Note {
			a.terminal.Paragraph(a.stdout, len("Note: "), "Note:", a.terminal.Dim, words.OneLine(f.Symptom)+".")
		}
	}
}
