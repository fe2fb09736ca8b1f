package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// Broker has the flags about the broker. They override the configuration and the environment.
type Broker struct {
	name    string
	project string   // Pub/Sub
	brokers []string // Kafka
	tls     bool
	sasl    string
}

// BrokerFlags are the flags for the connection to each broker.
var BrokerFlags = map[string]string{"pubsub": "--project", "kafka": "--brokers, --tls and --sasl"}

// Flags adds the flags that name a broker.
func (b *Broker) Flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&b.name, "broker", "", `the broker: "pubsub" or "kafka" (default: the configuration's, or $MILLRACE_BROKER)`)
	f.StringVar(&b.project, "project", "", "Pub/Sub: the Google Cloud project (default: $PUBSUB_PROJECT_ID, or $GOOGLE_CLOUD_PROJECT)")
	f.StringSliceVar(&b.brokers, "brokers", nil, "Kafka: host:port of one or more brokers, separated by commas (default: $MILLRACE_KAFKA_BROKERS)")
	f.BoolVar(&b.tls, "tls", false, "Kafka: use TLS; $SSL_CERT_FILE names certificate authorities that the system does not know")
	f.StringVar(&b.sasl, "sasl", "", "Kafka: SASL mechanism PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, as $MILLRACE_KAFKA_USER with $MILLRACE_KAFKA_PASSWORD")
	OneOf(c, "broker", "pubsub", "kafka")
}

// Check checks the flags.
func (b *Broker) Check() error {
	if b.name != "" && b.name != "pubsub" && b.name != "kafka" {
		return WantBroker(b.name)
	}
	return nil
}

// WantBroker returns the error for a broker that the command does not support.
func WantBroker(name string) error {
	return Misuse(fmt.Errorf("--broker is %q: want pubsub or kafka", name))
}

// variables returns the environment variables that the flags set, as flag, name and value.
func (b *Broker) variables() (all [][3]string) {
	set := func(flag, name, value string) {
		if value != "" {
			all = append(all, [3]string{flag, name, value})
		}
	}
	set("--broker", "MILLRACE_BROKER", b.name)
	set("--project", "MILLRACE_PUBSUB_PROJECT_ID", b.project)
	set("--brokers", "MILLRACE_KAFKA_BROKERS", strings.Join(b.brokers, ","))
	if b.tls {
		set("--tls", "MILLRACE_KAFKA_TLS_ENABLED", "true")
	}
	if b.sasl != "" {
		set("--sasl", "MILLRACE_KAFKA_SASL_MECHANISM", b.sasl)
		set("MILLRACE_KAFKA_USER", "MILLRACE_KAFKA_SASL_USER", os.Getenv("MILLRACE_KAFKA_USER"))
		set("MILLRACE_KAFKA_PASSWORD", "MILLRACE_KAFKA_SASL_PASSWORD", os.Getenv("MILLRACE_KAFKA_PASSWORD"))
	}
	return all
}

func (b *Broker) environ() (all []string) {
	for _, v := range b.variables() {
		all = append(all, v[1]+"="+v[2])
	}
	return all
}

// asFlags replaces variables by flags in an error.
func (b *Broker) asFlags(text string) string {
	for _, v := range b.variables() {
		text = strings.ReplaceAll(text, "$"+v[1]+":", v[0]+":")
	}
	return text
}

// Words returns the flags for another command with the same broker.
func (b *Broker) Words() (all []string) {
	for _, v := range b.variables() {
		switch {
		case v[0] == "--tls":
			all = append(all, v[0])
		case strings.HasPrefix(v[0], "--"):
			all = append(all, v[0], v[2])
		}
	}
	return all
}
