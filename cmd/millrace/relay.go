package main

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/internal/doctor"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

func (a *app) relay() *cobra.Command {
	var batchSize int
	var drain time.Duration
	c := a.database(&cobra.Command{
		Use: "relay {--config FILE | --broker pubsub|kafka}", Short: "Publish events from the outbox to a broker until SIGTERM", Args: cobra.NoArgs,
		Long: "Publishes committed events from the outbox to a broker until SIGTERM or Ctrl-C, and then waits for those in flight. Any\n" +
			"number of relays share the work. With --config it takes the database, the broker and the section outbox from a service's\n" +
			"configuration; MILLRACE_* variables win over that, and flags over both. PUBSUB_EMULATOR_HOST and Google's other\n" +
			"variables are respected.\n\n" +
			"If the configuration has a section fleet, the command forwards the outboxes of all its databases within a budget of\n" +
			"connections, and serves /metrics, /healthz and /readyz at admin.address.",
		Example: "  millrace relay --config millrace.yaml\n  millrace relay --broker pubsub --project my-project\n  millrace relay --broker kafka --brokers kafka-1:9092,kafka-2:9092 --tls",
	})
	a.broker.flags(c)
	c.Flags().IntVar(&batchSize, "batch-size", 0, "events per batch, 1 to 10000 (default: 1000)")
	c.Flags().DurationVar(&drain, "drain-timeout", 0, "how long to wait at the end for events in flight (default: shutdown_timeout of the configuration, or 10s)")
	var cfg outbox.RelayConfig
	run := a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) (err error) {
		a.progress.Say("") // its log tells
		broker, err := a.openTransport(ctx, pool, cfg.Logger, cfg.DrainTimeout)
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
		cfg.Logger.InfoContext(ctx, "relay runs", "broker", broker.Name(), "schema", a.schema)
		if err := relay.Run(ctx); err != nil {
			return err
		}
		cfg.Logger.InfoContext(context.WithoutCancel(ctx), "relay has ended")
		return nil
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		if name := a.brokerName(); name != "pubsub" && name != "kafka" { // broker "memory" exists only inside a service
			return wantBroker(name)
		}
		if a.cfg == nil {
			if err := a.load(); err != nil {
				return err
			}
			if err := a.selectDatabase(c.Context()); err != nil { // the environment may name a fleet, too
				return err
			}
		}
		a.conns, cfg = doctor.PoolRelay, a.cfg.Outbox.RelayConfig
		cfg.Schema, cfg.Logger, cfg.BatchSize = a.schema, a.logger(), cmp.Or(batchSize, cfg.BatchSize)
		if a.cfg.Migration.To == "" { // else the transport looks at the record
			cfg.Broker = a.cfg.Broker
		}
		if cfg.DrainTimeout = drain; drain == 0 && a.file != "" {
			cfg.DrainTimeout = a.cfg.ShutdownTimeout
		}
		if err := cfg.WithDefaults().Validate(); err != nil { // the configuration's own was checked
			return usageError{errors.New(relayFlags.Replace(err.Error()))}
		}
		if len(a.fleet) > 0 {
			all := *a.cfg
			all.Postgres.Schema, all.Outbox.RelayConfig, all.Log.Handler = a.schema, cfg, cfg.Logger.Handler()
			all.ShutdownTimeout = cmp.Or(drain, all.ShutdownTimeout)
			return a.relayFleet(all)
		}
		return run(c, args)
	}
	return a.prints(c)
}

// relayFlags names fields as the flags that set them.
var relayFlags = strings.NewReplacer("RelayConfig.BatchSize", "--batch-size", "RelayConfig.DrainTimeout", "--drain-timeout")
