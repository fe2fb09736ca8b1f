package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
)

//go:embed schema.sql
var schemaSQL string

// play starts the services, lets the client complete the labours while processes are killed, and judges the result.
func play(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	s, err := stage.SetUp(ctx, stage.Setting{
		Name: "quickstart", Broker: o.Broker, Addresses: 1, Logs: o.Logs(stderr),
		Tables: func(ctx context.Context, pool *pgxpool.Pool, schema string) error {
			return createTables(ctx, pool, schema, o.events)
		},
	}, stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.TearDown()) }()
	if o.console {
		stop, err := openConsole(ctx, s, o.Logs(stderr))
		if err != nil {
			return err
		}
		defer stop()
	}
	sms, url, stop, err := startProvider(ctx)
	if err != nil {
		return err
	}
	defer stop()
	cfg := config{
		Env: s.Config.Env, DSN: s.Config.DSN, Schema: s.Config.Schema, Broker: o.Broker, Project: s.Config.Project, Prefix: s.Config.Prefix,
		API: s.Config.Addresses[0], SMS: url, Events: o.events, Duplicates: o.duplicates, Without: o.without, Rate: rate(o),
	}
	if o.push {
		var stop func()
		if cfg.Push, stop, err = startBalancer(ctx, o.consumers); err != nil {
			return err
		}
		defer stop()
	}
	c, disconnect, err := newCast(ctx, cfg, s.Pool, o.Logs(stderr))
	if err != nil {
		return err
	}
	defer disconnect()
	err = perform(ctx, s, cfg, o, c, newProgress(stdout, c, o))
	c.Close()
	if err != nil {
		return err
	}
	v, err := judge(ctx, s.Pool, sms, o.events, c.Counts.Get("answered"))
	if err != nil {
		return err
	}
	report{verdict: v, cast: c, services: labels(s.Services, o), without: o.without, colour: hasColour(stdout)}.print(stdout)
	if !v.good() {
		return stage.ErrVerdict
	}
	return nil
}

// rate spreads the events over the kills, about one per second.
func rate(o options) float64 {
	const fastest = 400
	return min(float64(o.events)/max(0.9*float64(o.Kills), 1), fastest)
}

func createTables(ctx context.Context, pool *pgxpool.Pool, schema string, events int) error {
	if err := stage.Tables(schemaSQL, outbox.Migrate, claim.Migrate)(ctx, pool, schema); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `insert into labours (id, mother) select i, 'Mother ' || i from generate_series(1, $1::int) as i`, events)
	return err
}

func labels(services []devstack.Info, o options) (all []string) {
	for _, i := range services {
		label := i.String()
		if o.push && i.Service == devstack.PubSub {
			label += ", by push"
		}
		all = append(all, label)
	}
	if o.Broker == "memory" {
		all = append(all, "broker: in memory, in this process")
	}
	return all
}

// newCast runs the parts as processes or, with -broker memory, all in this one.
func newCast(ctx context.Context, cfg config, pool *pgxpool.Pool, logs io.Writer) (c *stage.Cast, disconnect func(), err error) {
	if cfg.Broker != "memory" {
		return stage.NewProcesses(ctx, logs, func(string, int) any { return cfg }), func() {}, nil
	}
	log := slog.New(slog.NewTextHandler(logs, nil))
	broker, err := newBroker(ctx, cfg, log)
	if err != nil {
		return nil, nil, err
	}
	c = stage.NewGoroutines(ctx, func(ctx context.Context, name string, _ int) error {
		return roles[name](&service{cfg: cfg, pool: pool, broker: broker, count: c.Counts.Add, log: log}, ctx)
	})
	return c, func() { _ = broker.Close() }, nil
}

// killedRoles are killed in turn.
var killedRoles = []string{"api", "relay", "consumer"}

// perform starts all parts. It starts the client after the subscriptions exist, because a topic without subscriptions drops its messages.
func perform(ctx context.Context, s *stage.Stage, cfg config, o options, c *stage.Cast, p *progress) error {
	c.Start("consumer", o.consumers)
	c.Start("api", 1)
	c.Start("relay", 1)
	if err := c.Await(ctx, "subscribed", 1); err != nil {
		return err
	}
	roles := killedRoles
	if o.without == "outbox" {
		roles = []string{"api"} // only the API can lose an event
	}
	return c.Watch(ctx, stage.Watching{
		Kills: o.Kills, Roles: roles,
		Span:  time.Duration(float64(o.events) / cfg.Rate * float64(time.Second)), // of the client's requests
		Loses: o.without == "outbox",
		Act:   (&service{cfg: cfg, count: c.Counts.Add}).client,
		State: func(ctx context.Context) (string, bool, error) {
			st, err := readState(ctx, s.Pool)
			all := st.completed == o.events && c.Counts.Get("answered") == o.events && st.notified == o.events && st.thanked == o.events && st.outbox == 0
			p.state = st
			return fmt.Sprint(st), all, err
		},
		Progress: p,
	})
}
