package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/outbox"
)

func (a *app) relay() *cobra.Command {
	var broker broker
	var cfg outbox.RelayConfig
	c := a.database(&cobra.Command{
		Use: "relay --broker pubsub|kafka", Short: "Forward events to a broker until SIGTERM", Args: cobra.NoArgs,
		Long: "Forwards committed events to a broker until SIGTERM or Ctrl-C, and lets what is on its way finish. As many as you like\n" +
			"share the work. PUBSUB_EMULATOR_HOST and Google's other conventions hold.",
	})
	broker.flags(c.Flags())
	c.Flags().IntVar(&cfg.BatchSize, "batch-size", 0, "events per batch, 1 to 10000 (default 500)")
	c.Flags().DurationVar(&cfg.DrainTimeout, "drain-timeout", 0, "how long to wait at the end for what is on its way (default 10s)")
	run := a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) (err error) {
		cfg.Schema, cfg.Logger = a.schema, a.logger()
		transport, err := broker.connect(ctx, cfg.Logger)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, transport.Close()) }()
		publisher, err := transport.Publisher()
		if err != nil {
			return err
		}
		relay, err := outbox.NewRelay(pool, publisher, cfg)
		if err != nil {
			return usageError{err}
		}
		cfg.Logger.InfoContext(ctx, "relay runs", "broker", broker.name, "schema", a.schema)
		if err := relay.Run(ctx); err != nil {
			return err
		}
		cfg.Logger.InfoContext(context.WithoutCancel(ctx), "relay has ended")
		return nil
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := broker.check(); err != nil {
			return err
		}
		return run(c, args)
	}
	return a.jsonFlag(c)
}
