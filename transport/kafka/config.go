package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

const (
	defaultClientID = "millrace"
	defaultVersion  = "3.6.0"

	defaultMaxBufferedBytes = 128 << 20
	minBufferedBytes        = 16 << 20
)

// minVersion is the first protocol version in which an idempotent producer resumes after a lost epoch and a transaction's
// offsets are fenced by the group's generation in every request this transport sends.
var minVersion = sarama.V2_8_0_0

// Config configures the transport. The zero value works with the brokers that MILLRACE_KAFKA_BROKERS names.
type Config struct {
	// Brokers are the addresses, host:port, by which the cluster is found. Required.
	// Default: MILLRACE_KAFKA_BROKERS with commas between, which "millrace dev" sets.
	Brokers []string

	// ClientID names this service in the brokers' logs, metrics and quotas. Default: "millrace".
	ClientID string

	// Version is the newest protocol version that the client speaks; an older broker gets the older requests that it
	// knows. 2.8.0 or later, because earlier versions do not fence late commits of a transaction's offsets. Default:
	// "3.6.0".
	Version string

	// Rack is where this process runs, such as the availability zone, in the words of the brokers' broker.rack. Consumers then
	// read from a replica in the same rack, if the brokers have set replica.selector.class to RackAwareReplicaSelector: that
	// saves traffic between zones. Default: "", they read from the leaders.
	Rack string

	// TLS encrypts the connections. Default: nil, they are plain text.
	TLS    *tls.Config
	newTLS func() *tls.Config // TLS as its files are now; nil: it has none

	// SASL authenticates this service. Default: it is anonymous.
	SASL SASL

	// Dial opens connections, for instance through a tunnel or a proxy. Default: (*net.Dialer).DialContext.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Topics is what becomes of topics that are missing. Default: they are created.
	Topics Topics

	// Producer configures publishing.
	Producer ProducerConfig

	// Delivery is how the messages of subscribers are settled. With AtLeastOnce an offset commits after its message was handled. With
	// Transactional a handler's outputs and its message's offset commit in one Kafka transaction, and there is no claim. Default:
	// AtLeastOnce.
	Delivery Delivery

	// Transaction configures transactional delivery.
	Transaction Transaction

	// Consumer configures every consumer that Consumers does not name.
	Consumer ConsumerConfig

	// Consumers configures single consumers, by what follows the last "." in SubscriberConfig.Consumer: in a service of the
	// framework, the handler's name. An entry replaces Consumer as a whole: its zero fields mean their defaults, not what
	// Consumer says. Default: none.
	Consumers map[string]ConsumerConfig

	// MaxBufferedBytes is how many bytes the messages may take that this process has read and not finished, of all partitions of
	// all consumers, uncompressed. Each partition may hold an equal share. At the limit partitions pause, and read again in turn;
	// what is on its way then may exceed the limit by about a quarter. A partition that holds nothing reads on after 10 s in which
	// none has finished a message, so one consumer whose handlers hang does not stop the others. From 16 MiB on. Default: 128 MiB.
	MaxBufferedBytes int

	// DrainTimeout is how long a closing subscriber waits for running handlers. After that their contexts are cancelled
	// and their messages are delivered again. Default: transport.DefaultDrainTimeout (30 s); in a service of the framework its
	// ShutdownTimeout, or the longest timeout of a handler if that is longer.
	DrainTimeout time.Duration

	// MeterProvider receives the metrics named millrace.kafka. Default: otel.GetMeterProvider().
	MeterProvider metric.MeterProvider

	// TracerProvider receives the spans named millrace.kafka. Default: otel.GetTracerProvider().
	TracerProvider trace.TracerProvider

	// Propagator reads and writes the trace context in the messages' metadata. Default: otel.GetTextMapPropagator().
	Propagator propagation.TextMapPropagator

	// Logger receives what happens in the background. Default: slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c Config) WithDefaults() Config {
	if len(c.Brokers) == 0 {
		c.Brokers = strings.FieldsFunc(os.Getenv("MILLRACE_KAFKA_BROKERS"), func(r rune) bool { return r == ',' || r == ' ' })
	}
	c.ClientID = cmp.Or(c.ClientID, defaultClientID)
	c.Version = cmp.Or(c.Version, defaultVersion)
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	c.Topics = c.Topics.WithDefaults()
	c.Producer = c.Producer.WithDefaults()
	c.Transaction = c.Transaction.WithDefaults()
	c.Consumer = c.Consumer.WithDefaults()
	c.Consumers = maps.Clone(c.Consumers)
	for name, consumer := range c.Consumers {
		c.Consumers[name] = consumer.WithDefaults()
	}
	c.MaxBufferedBytes = cmp.Or(c.MaxBufferedBytes, defaultMaxBufferedBytes)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, transport.DefaultDrainTimeout)
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.Propagator == nil {
		c.Propagator = otel.GetTextMapPropagator()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Limits is what a Kafka message can carry under the brokers' default settings: max.message.bytes is 1 MiB, and the
// framing takes some of it. ProducerConfig.MaxMessageBytes changes it. A topic that takes less is asked once; its limit
// holds then.
var Limits = wire.Limits

// limits is Limits as configured.
func (c Config) limits() transport.Limits {
	limits := Limits
	limits.MessageBytes = c.Producer.MaxMessageBytes
	return limits
}

// clientIDs is what the brokers take in names of metrics and quotas.
var clientIDs = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)

// Validate reports everything that is wrong with the configuration. It expects one that has its defaults.
func (c Config) Validate() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("Config.Brokers is empty: want host:port of one broker or more, here or in MILLRACE_KAFKA_BROKERS"))
	}
	for _, broker := range c.Brokers {
		if host, port, err := net.SplitHostPort(broker); err != nil || host == "" || !isPort(port) {
			errs = append(errs, fmt.Errorf("Config.Brokers has %q: want host:port, with a port from 1 to 65535", broker))
		}
	}
	if !clientIDs.MatchString(c.ClientID) {
		errs = append(errs, fmt.Errorf("Config.ClientID is %q: want 1 to 249 letters, digits, \".\", \"_\" and \"-\"", c.ClientID))
	}
	if strings.TrimSpace(c.Rack) != c.Rack {
		errs = append(errs, fmt.Errorf("Config.Rack is %q: want what broker.rack is, without spaces around it", c.Rack))
	}
	if version, err := sarama.ParseKafkaVersion(c.Version); err != nil {
		errs = append(errs, fmt.Errorf("Config.Version is %q: want a release of Apache Kafka such as %q", c.Version, defaultVersion))
	} else if !version.IsAtLeast(minVersion) {
		errs = append(errs, fmt.Errorf("Config.Version is %s: want %s or later, because before it a member that lost its partitions could still commit their offsets in a transaction", c.Version, minVersion))
	}
	errs = append(errs, c.SASL.validate(c.TLS != nil, c.Brokers), c.Topics.validate(), c.Producer.validate())
	if c.Delivery != AtLeastOnce && c.Delivery != Transactional {
		errs = append(errs, fmt.Errorf("Config.Delivery is %s: want AtLeastOnce or Transactional", c.Delivery))
	}
	errs = append(errs, c.Transaction.validate(), c.Consumer.validate("Config.Consumer"))
	for _, name := range slices.Sorted(maps.Keys(c.Consumers)) {
		field := fmt.Sprintf("Config.Consumers[%q]", name)
		if err := transport.ValidateHandler(name); err != nil {
			errs = append(errs, fmt.Errorf("%s is of no consumer: %w", field, err))
		}
		errs = append(errs, c.Consumers[name].validate(field))
	}
	if c.MaxBufferedBytes < minBufferedBytes {
		errs = append(errs, fmt.Errorf("Config.MaxBufferedBytes is %d: want %d or more, or 0 for the default of %d", c.MaxBufferedBytes, minBufferedBytes, defaultMaxBufferedBytes))
	}
	if c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("Config.DrainTimeout is %s: want more than 0, or 0 for the default of %s", c.DrainTimeout, transport.DefaultDrainTimeout))
	}
	return errors.Join(errs...)
}

func isPort(s string) bool {
	port, err := strconv.ParseUint(s, 10, 16)
	return err == nil && port > 0
}

// consumer returns the settings of the consumer.
func (c Config) consumer(name string) ConsumerConfig {
	if consumer, ok := c.Consumers[transport.HandlerOf(name)]; ok {
		return consumer
	}
	return c.Consumer
}
