package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// broker is the one that a command talks to, as its flags tell.
type broker struct {
	name    string
	project string   // Pub/Sub
	brokers []string // Kafka
	tls     bool
	sasl    string
}

func (b *broker) flags(f *pflag.FlagSet) {
	f.StringVar(&b.name, "broker", "", `the broker: "pubsub" or "kafka"`)
	f.StringVar(&b.project, "project", "", "Pub/Sub: the Google Cloud project (default $PUBSUB_PROJECT_ID, $GOOGLE_CLOUD_PROJECT)")
	f.StringSliceVar(&b.brokers, "brokers", nil, "Kafka: host:port of one broker or more, with commas between (default $MILLRACE_KAFKA_BROKERS)")
	f.BoolVar(&b.tls, "tls", false, "Kafka: encrypt the connections; $SSL_CERT_FILE names the authorities where they are not the system's")
	f.StringVar(&b.sasl, "sasl", "", "Kafka: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, as $MILLRACE_KAFKA_USER with $MILLRACE_KAFKA_PASSWORD")
}

func (b *broker) check() error {
	if b.name != "pubsub" && b.name != "kafka" {
		return usageError{fmt.Errorf("--broker is %q: want pubsub or kafka", b.name)}
	}
	return nil
}

func (b *broker) connect(ctx context.Context, log *slog.Logger) (transport.Transport, error) {
	if b.name == "kafka" {
		return b.connectKafka(ctx, log)
	}
	t, err := pubsub.New(ctx, pubsub.Config{ProjectID: b.project, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("%w; --project names the Google Cloud project", err)
	}
	return t, nil
}

func (b *broker) connectKafka(ctx context.Context, log *slog.Logger) (transport.Transport, error) {
	cfg := kafka.Config{Brokers: b.brokers, ClientID: "millrace-relay", Logger: log}
	if b.tls {
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if b.sasl != "" {
		cfg.SASL = kafka.SASL{
			Mechanism: b.sasl, User: os.Getenv("MILLRACE_KAFKA_USER"), Password: os.Getenv("MILLRACE_KAFKA_PASSWORD"),
		}
	}
	t, err := kafka.New(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("%w; --brokers, --tls and --sasl tell how Kafka is reached", err)
	}
	return t, nil
}
