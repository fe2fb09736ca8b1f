package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// config is what every part needs to know.
type config struct {
	Env        []string // of the processes: where the services are
	DSN        string
	Schema     string // of Millrace's tables and the example's
	Broker     string // pubsub or kafka
	Project    string // of Pub/Sub
	Prefix     string // of topics and consumers, because Kafka has no projects
	API        string // address of the API
	SMS        string // URL of the SMS provider
	Events     int
	Rate       float64 // labours completed per second
	Duplicates float64
	Without    string
	Push       *push // nil: the consumers pull
}

// service is one part at work.
type service struct {
	cfg    config
	pool   *pgxpool.Pool
	broker transport.Transport
	count  func(what string) // tells the main process, line by line, so that a kill loses no count
	log    *slog.Logger
}

var roles = map[string]func(*service, context.Context) error{
	"api":      (*service).api,
	"relay":    (*service).relay,
	"consumer": (*service).consumer,
	"client":   (*service).client,
}

// playRole is a process of this example: this same program again.
func playRole(ctx context.Context, cfg config, _ <-chan string) error {
	for _, line := range cfg.Env {
		name, value, _ := strings.Cut(line, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("process", role.Name(), "pid", os.Getpid())
	var mu sync.Mutex
	s := &service{cfg: cfg, log: log, count: func(what string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(what)
	}}
	if role.Name() != "client" {
		var err error
		if s.pool, err = newPool(ctx, cfg); err != nil {
			return err
		}
		defer s.pool.Close()
		if s.broker, err = newBroker(ctx, cfg, log); err != nil {
			return err
		}
		defer func() { _ = s.broker.Close() }()
	}
	return roles[role.Name()](s, ctx)
}

func newPool(ctx context.Context, cfg config) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(cfg.DSN)
	if err != nil {
		return nil, err
	}
	c.MaxConns = 24
	c.ConnConfig.RuntimeParams["search_path"] = cfg.Schema
	return pgxpool.NewWithConfig(ctx, c)
}

// newBroker connects to the emulator or the cluster that the environment names (PUBSUB_EMULATOR_HOST,
// MILLRACE_KAFKA_BROKERS). The short ack deadline and session timeout are how soon the messages of a killed consumer come
// back.
func newBroker(ctx context.Context, cfg config, log *slog.Logger) (transport.Transport, error) {
	if cfg.Broker == "kafka" {
		return kafka.New(ctx, kafka.Config{Consumer: kafka.ConsumerConfig{SessionTimeout: sessionTimeout}, Logger: log})
	}
	subscription := pubsub.SubscriptionConfig{AckDeadline: ackDeadline}
	if cfg.Push != nil { // all that differs for a consumer, besides serving HTTP
		subscription.Push = &pubsub.Push{Endpoint: cfg.Push.Endpoint, AllowUnauthenticated: true} // the emulator sends no tokens
	}
	return pubsub.New(ctx, pubsub.Config{ProjectID: cfg.Project, Subscription: subscription, Logger: log})
}

// topic is the topic's name in this run.
func (s *service) topic(name string) string { return s.cfg.Prefix + name }
