package main

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

func (a *app) relay() *cobra.Command {
	var batchSize int
	var drain time.Duration
	c := a.database(&cobra.Command{
		Use: "relay {--config FILE | --broker pubsub|kafka}", Short: "Forward events to a broker until SIGTERM", Args: cobra.NoArgs,
		Long: "Forwards committed events to a broker until SIGTERM or Ctrl-C, and lets what is on its way finish. As many as you like\n" +
			"share the work. With --config it takes database, broker and the section outbox from a service's configuration, with\n" +
			"MILLRACE_* variables on top of it; flags win over both. PUBSUB_EMULATOR_HOST and Google's other conventions hold.",
	})
	a.broker.flags(c)
	c.Flags().IntVar(&batchSize, "batch-size", 0, "events per batch, 1 to 10000 (default 1000)")
	c.Flags().DurationVar(&drain, "drain-timeout", 0, "how long to wait at the end for what is on its way (default shutdown_timeout of the configuration, else 10s)")
	var cfg outbox.RelayConfig
	run := a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) (err error) {
		broker, err := a.openBroker(ctx, cfg.Logger, cfg.DrainTimeout)
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
		if name := a.brokerName(); name != "pubsub" && name != "kafka" { // memory is in the memory of its service
			return wantBroker(name)
		}
		if a.cfg == nil {
			if err := a.load(); err != nil {
				return err
			}
		}
		a.conns, cfg = poolRelay, a.cfg.Outbox.RelayConfig
		cfg.Schema, cfg.Logger, cfg.BatchSize = a.schema, a.logger(), cmp.Or(batchSize, cfg.BatchSize)
		if cfg.DrainTimeout = drain; drain == 0 && a.file != "" {
			cfg.DrainTimeout = a.cfg.ShutdownTimeout
		}
		if err := cfg.WithDefaults().Validate(); err != nil { // the configuration's own was checked
			return usageError{errors.New(relayFlags.Replace(err.Error()))}
		}
		return run(c, args)
	}
	return a.prints(c)
}

// relayFlags are what the fields are called here.
var relayFlags = strings.NewReplacer("RelayConfig.BatchSize", "--batch-size", "RelayConfig.DrainTimeout", "--drain-timeout")
