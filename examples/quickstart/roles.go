package main

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/examples/internal/swap"
	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/memory"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// config is the configuration of all parts.
type config struct {
	Env        []string // environment of the processes, with the addresses of the services
	DSN        string
	Schema     string // of Millrace's tables and the example's
	Broker     string // pubsub, kafka or memory
	Project    string // of Pub/Sub
	Prefix     string // prefix of topics and consumers, which separates runs on Kafka; Pub/Sub has a project for each run
	API        string // address of the API
	SMS        string // URL of the SMS provider
	Events     int
	Rate       float64 // labours completed per second
	Duplicates float64
	Without    string
	Push       *push // nil: the consumers pull
}

// service is one part of the example, in its process.
type service struct {
	cfg    config
	pool   *pgxpool.Pool
	broker transport.Transport
	count  func(what string) // reports to the main process line by line, so that a kill loses no count
	log    *slog.Logger
}

var roles = map[string]func(*service, context.Context) error{
	"api":      (*service).api,
	"relay":    (*service).relay,
	"consumer": (*service).consumer,
}

// playRole runs one part in a process of its own: this program, started again.
func playRole(ctx context.Context, cfg config, _ <-chan string) error {
	if err := stage.Setenv(cfg.Env); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("process", role.Name(), "pid", os.Getpid())
	var mu sync.Mutex
	s := &service{cfg: cfg, log: log, count: func(what string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(what)
	}}
	var err error
	if s.pool, err = stage.NewPool(ctx, cfg.DSN, cfg.Schema); err != nil {
		return err
	}
	defer s.pool.Close()
	if s.broker, err = newBroker(ctx, cfg, log); err != nil {
		return err
	}
	defer func() { _ = s.broker.Close() }()
	s.count("up")
	return roles[role.Name()](s, ctx)
}

//go:embed millrace.yaml
var millraceYAML string

// newBroker connects to the broker that millrace.yaml names; -broker replaces its line. The broker is the emulator or the cluster
// of the environment (PUBSUB_EMULATOR_HOST, MILLRACE_KAFKA_BROKERS), or a new one in memory.
func newBroker(ctx context.Context, cfg config, log *slog.Logger) (transport.Transport, error) {
	google := pubsub.Config{ProjectID: cfg.Project}
	if cfg.Push != nil { // the only other difference of a consumer with push is its HTTP server
		google.Subscription.Push = &pubsub.Push{Endpoint: cfg.Push.Endpoint, AllowUnauthenticated: true} // the emulator sends no tokens
	}
	c, err := swap.Broker(millraceYAML, cfg.Broker, pubsub.NewDriver(google), kafka.Driver, memory.Driver)
	if err != nil {
		return nil, err
	}
	_, settings, err := c.Settings()
	if err != nil {
		return nil, err
	}
	return settings.Open(ctx, transport.Environment{Logger: log})
}

// topic returns the topic's name in this run.
func (s *service) topic(name string) string { return s.cfg.Prefix + name }
