package main

import (
	"context"
	_ "embed"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/examples/internal/swap"
	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/memory"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// harborPoint is an instance of the service.
type harborPoint struct {
	*framework.Service
	p        *stage.Part
	o        options
	careless careless
	// The topics have different names in each run.
	confirmed, updated *framework.TopicOf[booking]
}

// instance runs an instance until ctx ends.
func instance(ctx context.Context, p *stage.Part) error {
	o, err := parse(p.Args, io.Discard)
	if err != nil {
		return err
	}
	cfg, err := load(ctx, p, o)
	if err != nil {
		return err
	}
	if o.without == "id" {
		// As if the event's ID were the broker's, which is new for each copy.
		cfg.Claim.EventID = func(*message.Message) (string, error) { return outbox.NewID(), nil }
	}
	slog.SetDefault(p.Log) // the service's logger
	svc, err := framework.New(ctx, cfg)
	if err != nil {
		return err
	}
	h := harborPoint{
		Service: svc, p: p, o: o, careless: careless{make(chan struct{})},
		confirmed: framework.Topic[booking](p.Topic(bookingConfirmed)), updated: framework.Topic[booking](p.Topic(manifestUpdated)),
	}
	defer func() { _ = svc.Close() }() // for errors before Run
	if err := h.assemble(); err != nil {
		return err
	}
	watch := func(context.Context) error { return nil }
	if o.without == "drain" && cfg.Broker == p.Config.Broker {
		watch = func(ctx context.Context) error { return h.careless.watch(ctx, svc.Pool()) }
	}
	return stage.Together(ctx, svc.Run, watch, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-svc.Running():
			p.Count("running")
		}
		return nil
	})
}

// assemble registers what the service does.
func (h harborPoint) assemble() error {
	keys, err := h.Keys(idempotencykey.Shared)
	if err != nil {
		return err
	}
	book := http.Handler(http.HandlerFunc(h.book))
	if h.o.without != "key" {
		book = keys.Middleware(book)
	}
	h.HTTP().Handle("POST /bookings", book)
	h.Router().AddMiddleware(h.p.CountDeliveries)
	if h.o.without == "drain" {
		h.Router().AddMiddleware(h.careless.middleware)
	}
	for _, add := range []error{
		framework.Handle(h.Service, h.name("manifest-projector"), h.confirmed, h.projectManifest),
		framework.Handle(h.Service, h.name("confirm-by-mail"), h.confirmed, h.confirmByMail),
		framework.Handle(h.Service, h.name("embarkation"), h.updated, h.embark),
		h.AddHandler(h.name("careless-bridge"), h.confirmed.Name(), h.repeat),
	} {
		if add != nil {
			return add
		}
	}
	return nil
}

// name returns a handler's name in this run. In Kafka it is a group, and all runs share one cluster.
func (h harborPoint) name(handler string) string { return h.p.Prefix + handler }

//go:embed millrace.yaml
var millraceYAML string

// load reads millrace.yaml, with the broker of -broker in its line. Settings that differ between runs come from the environment.
func load(ctx context.Context, p *stage.Part, o options) (cfg framework.Config, err error) {
	environment := map[string]string{
		"MILLRACE_POSTGRES_DSN":      withSearchPath(p.DSN, p.Schema),
		"MILLRACE_POSTGRES_SCHEMA":   p.Schema,
		"MILLRACE_HTTP_ADDRESS":      p.Addresses[p.Number],
		"MILLRACE_PUBSUB_PROJECT_ID": p.Project,
	}
	broker := p.Config.Broker
	switch {
	case !o.migrate:
	case o.without != "drain":
		environment["MILLRACE_MIGRATION_TO"], environment["MILLRACE_MIGRATION_QUIET"] = other(broker), quietFor.String()
	default:
		moved, err := movedBefore(ctx, environment["MILLRACE_POSTGRES_DSN"])
		if err != nil {
			return cfg, err
		}
		if moved {
			broker = other(broker)
		}
	}
	for name, value := range environment {
		if err := os.Setenv(name, value); err != nil {
			return cfg, err
		}
	}
	return swap.Broker(millraceYAML, broker, pubsub.Driver, kafka.Driver, memory.Driver)
}

// withSearchPath sets the search path, so that the handlers' SQL finds this run's tables.
func withSearchPath(dsn, schema string) string {
	separator := "?"
	switch {
	case !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://"): // key=value
		separator = " "
	case strings.Contains(dsn, "?"):
		separator = "&"
	}
	return dsn + separator + "search_path=" + schema
}
