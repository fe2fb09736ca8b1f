package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// A process of this example is this same program, told by its environment which part to play.
const (
	roleVariable   = "QUICKSTART_ROLE"
	configVariable = "QUICKSTART_CONFIG"
)

// config is what every part needs to know.
type config struct {
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

// runRole is the main function of a started process. A line on its standard input asks it to stop; when the input ends
// without one, the main process was killed, and this one ends at once.
func runRole(role string) int {
	signal.Ignore(os.Interrupt) // Ctrl-C reaches the whole group; the main process decides
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		if line, _ := bufio.NewReader(os.Stdin).ReadString('\n'); line == "" {
			os.Exit(exitTrouble)
		}
		cancel()
	}()
	signal.Ignore(syscall.SIGPIPE)
	var cfg config
	if err := json.Unmarshal([]byte(os.Getenv(configVariable)), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, configVariable+":", err)
		return exitTrouble
	}
	if err := runProcess(ctx, role, cfg); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		return exitTrouble
	}
	return exitOK
}

func runProcess(ctx context.Context, role string, cfg config) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("process", role, "pid", os.Getpid())
	var mu sync.Mutex
	s := &service{cfg: cfg, log: log, count: func(what string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(what)
	}}
	if role != "client" {
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
	return roles[role](s, ctx)
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
