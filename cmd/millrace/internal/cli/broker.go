package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// Broker is the one that a command talks to, as its flags tell. What they do not say is the configuration's, and the
// environment's, to say.
type Broker struct {
	name    string
	project string   // Pub/Sub
	brokers []string // Kafka
	tls     bool
	sasl    string
}

// BrokerFlags say how a broker is reached.
var BrokerFlags = map[string]string{"pubsub": "--project", "kafka": "--brokers, --tls and --sasl"}

// Flags gives a command the flags that name a broker.
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

// WantBroker is for a broker that the command cannot talk to.
func WantBroker(name string) error {
	return Misuse(fmt.Errorf("--broker is %q: want pubsub or kafka", name))
}

// variables are the settings that the flags stand for.
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

// asFlags has an error about the variables name the flags.
func (b *Broker) asFlags(text string) string {
	for _, v := range b.variables() {
		text = strings.ReplaceAll(text, "$"+v[1]+":", v[0]+":")
	}
	return text
}

// Words are the flags again, for a command that does the same.
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
