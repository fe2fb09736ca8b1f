package main

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/internal/doctor"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

func relayCommand(a *cli.App) *cobra.Command {
	var batchSize int
	var drain time.Duration
	c := a.Database(&cobra.Command{
		Use: "relay {--config FILE | --broker pubsub|kafka}", Short: "Publish events from the outbox to a broker until SIGTERM", Args: cobra.NoArgs,
		Long: "Publishes committed events from the outbox to a broker until SIGTERM or Ctrl-C, and then waits for those in flight. Any\n" +
			"number of relays share the work. With --config it takes the database, the broker and the section outbox from a service's\n" +
			"configuration; MILLRACE_* variables win over that, and flags over both. PUBSUB_EMULATOR_HOST and Google's other\n" +
			"variables are respected.\n\n" +
			"If the configuration has a section fleet, the command forwards the outboxes of all its databases within a budget of\n" +
			"connections, and serves /metrics, /healthz and /readyz at admin.address.",
		Example: "  millrace relay --config millrace.yaml\n  millrace relay --broker pubsub --project my-project\n  millrace relay --broker kafka --brokers kafka-1:9092,kafka-2:9092 --tls",
	})
	a.Broker.Flags(c)
	c.Flags().IntVar(&batchSize, "batch-size", 0, "events per batch, 1 to 10000 (default: 1000)")
	c.Flags().DurationVar(&drain, "drain-timeout", 0, "how long to wait at the end for events in flight (default: shutdown_timeout of the configuration, or 10s)")
	var cfg outbox.RelayConfig
	run := a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) (err error) {
		a.Progress.Say("") // the log shows what happens
		broker, err := a.OpenTransport(ctx, pool, cfg.Logger, cfg.DrainTimeout)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, broker.Close()) }()
		publisher, err := transport.PlainPublisher(broker)
		if err != nil {
			return err
		}
		relay, err := outbox.NewRelay(pool, publisher, cfg)
		if err != nil {
			return err
		}
		cfg.Logger.InfoContext(ctx, "relay runs", "broker", broker.Name(), "schema", a.Schema)
		if err := relay.Run(ctx); err != nil {
			return err
		}
		cfg.Logger.InfoContext(context.WithoutCancel(ctx), "relay has ended")
		return nil
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		if name := a.BrokerName(); name != "pubsub" && name != "kafka" { // broker "memory" exists only inside a service
			return cli.WantBroker(name)
		}
		if a.Config == nil {
			if err := a.Load(); err != nil {
				return err
			}
			if err := a.SelectDatabase(c.Context()); err != nil { // the environment may also name a fleet
				return err
			}
		}
		a.Conns, cfg = doctor.PoolRelay, a.Config.Outbox.RelayConfig
		cfg.Schema, cfg.Logger, cfg.BatchSize = a.Schema, a.Logger(), cmp.Or(batchSize, cfg.BatchSize)
		if a.Config.Migration.To == "" { // otherwise the transport reads the migration's record
			cfg.Broker = a.Config.Broker
		}
		if cfg.DrainTimeout = drain; drain == 0 && a.File != "" {
			cfg.DrainTimeout = a.Config.ShutdownTimeout
		}
		if err := cfg.WithDefaults().Validate(); err != nil { // the configuration itself was checked before
			return cli.Misuse(errors.New(relayFlags.Replace(err.Error())))
		}
		if len(a.Fleet) > 0 {
			all := *a.Config
			all.Postgres.Schema, all.Outbox.RelayConfig, all.Log.Handler = a.Schema, cfg, cfg.Logger.Handler()
			all.ShutdownTimeout = cmp.Or(drain, all.ShutdownTimeout)
			return relayFleet(all)
		}
		return run(c, args)
	}
	return a.Prints(c)
}

// relayFlags replaces names of fields by the flags that set them.
var relayFlags = strings.NewReplacer("RelayConfig.BatchSize", "--batch-size", "RelayConfig.DrainTimeout", "--drain-timeout")

// relayFleet publishes the events of all databases until a signal.
func relayFleet(cfg framework.Config) error {
	ctx, stop := cli.UntilSignal()
	defer stop()
	err := framework.RunFleet(ctx, cfg)
	var wrong *framework.ConfigError
	if errors.As(err, &wrong) {
		return errors.New(strings.Join(wrong.Problems, "\n"))
	}
	return err
}
