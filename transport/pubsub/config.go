package pubsub

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/api/option"

	"github.com/millrace-go/millrace/internal/enum"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/push"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

const (
	defaultRecheck      = time.Minute
	defaultMaxPushBytes = 64 << 20
)

// Limits is what a Pub/Sub message can carry (https://cloud.google.com/pubsub/quotas#resource_limits). The message's
// size is the limit of a publish request, 10 MB, less 2,000 bytes: encoding, the ID's attribute, the topic's name and a
// trace take up to 1,900. The event's ID takes one of the 100 attributes.
var Limits = wire.Limits

// Config configures the transport. The zero value works on Google Cloud and with the emulator.
type Config struct {
	// ProjectID is the Google Cloud project. Required.
	// Default: PUBSUB_PROJECT_ID, then GOOGLE_CLOUD_PROJECT, then, when PUBSUB_EMULATOR_HOST is set, "millrace".
	ProjectID string

	// Endpoint is the host and port of a regional or private endpoint, such as europe-west1-pubsub.googleapis.com:443. Pub/Sub keeps
	// the order of a key's messages only if all of them are published in one region: use the same endpoint in all processes that
	// publish from several regions. PUBSUB_EMULATOR_HOST, which names an emulator, takes precedence. Default: Pub/Sub's global endpoint.
	Endpoint string

	// CredentialsFile is the path of a service account's key, or of a configuration for workload identity federation. With an
	// emulator it is not read. Default: Google's application default credentials.
	CredentialsFile string

	// Topic configures the topics.
	Topic TopicConfig

	// Schemas are the schemas of single topics, by the topic's name. Default: none.
	Schemas map[string]SchemaConfig

	// Subscription configures the subscription of every consumer that Consumers does not name.
	Subscription SubscriptionConfig

	// Consumers configures the subscriptions of single consumers, by what follows the last "." in SubscriberConfig.Consumer: in
	// a service of the framework, the handler's name. An entry replaces Subscription as a whole: its zero fields mean their
	// defaults, not what Subscription says. Default: none.
	Consumers map[string]SubscriptionConfig

	// Resources says what to do about topics and subscriptions that are missing or have other settings. CreateMissing
	// creates what is missing, CheckOnly makes it an error, and Update also changes settings that differ. Default: CreateMissing.
	Resources Resources

	// Recheck is how often the topics that are published to and the subscriptions in use are looked at again, to find topics
	// that were deleted. What is published in between to a topic that someone has deleted and created anew is acknowledged,
	// and does not reach the old topic's subscriptions. Default: 1 min.
	Recheck time.Duration

	// MaxPushBytes is how many bytes the bodies of push requests may have together: those that are being read and those
	// whose messages are not settled, over all consumers. Other requests wait unread, and get 429 when there is no room in
	// time. The messages take up to twice as much memory. From 16 MiB, the largest body, on. Default: 64 MiB.
	MaxPushBytes int

	// DrainTimeout is how long a closing subscriber waits for running handlers. After that their contexts are
	// cancelled and their messages go back. Default: transport.DefaultDrainTimeout (30 s); in a service of the framework its
	// ShutdownTimeout, or the longest timeout of a handler if that is longer.
	DrainTimeout time.Duration

	// Tracing makes Google's client trace, too. It sends the span of a publish in attributes of the message, which are
	// removed on receipt. A delivery's span is linked to the span of the receipt, or is its child if the message's
	// metadata have no trace. It uses OpenTelemetry's global tracer provider. Default: false.
	Tracing bool

	// MeterProvider receives the metrics named millrace.pubsub. Default: otel.GetMeterProvider().
	MeterProvider metric.MeterProvider

	// TracerProvider receives a span for each delivery. Default: otel.GetTracerProvider().
	TracerProvider trace.TracerProvider

	// Propagator reads and writes the trace context in the messages' metadata. Default: otel.GetTextMapPropagator().
	Propagator propagation.TextMapPropagator

	// ClientOptions are handed to Google's client: credentials, endpoint, interceptors. Default: none.
	ClientOptions []option.ClientOption

	// Logger receives what happens in the background. Default: slog.Default().
	Logger *slog.Logger
}

// Resources says what becomes of topics and subscriptions that are missing, or are there with other settings than the
// configuration's. What Pub/Sub cannot change (topic, ordering, filter) is an error under each of them. A pull subscription
// where the configuration says push, or the other way round, is one under all but Update: its consumer would get nothing.
type Resources int

const (
	// CreateMissing creates what is missing, but no deleted topic that still has subscriptions: a new one would not feed
	// them. Settings of an existing subscription that differ are logged and left.
	CreateMissing Resources = iota
	// CheckOnly creates and changes nothing: what is missing is an error, settings that differ are logged. It is for
	// projects whose topics and subscriptions are made by Terraform or gcloud.
	CheckOnly
	// Update creates what is missing, and gives an existing subscription the configuration's settings where they differ.
	Update
)

func (r Resources) String() string {
	switch r {
	case CreateMissing:
		return "CreateMissing"
	case CheckOnly:
		return "CheckOnly"
	case Update:
		return "Update"
	}
	return fmt.Sprintf("Resources(%d)", int(r))
}

// MarshalText writes the word that a configuration file has: create_missing, check_only or update.
func (r Resources) MarshalText() ([]byte, error) {
	return enum.Text(r, CreateMissing, CheckOnly, Update)
}

// UnmarshalText reads it.
func (r *Resources) UnmarshalText(word []byte) error {
	return enum.Read(r, word, CreateMissing, CheckOnly, Update)
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c Config) WithDefaults() Config {
	if c.ProjectID == "" {
		c.ProjectID = cmp.Or(os.Getenv("PUBSUB_PROJECT_ID"), os.Getenv("GOOGLE_CLOUD_PROJECT"))
	}
	if c.ProjectID == "" && os.Getenv("PUBSUB_EMULATOR_HOST") != "" {
		c.ProjectID = "millrace"
	}
	c.Subscription = c.Subscription.WithDefaults()
	c.Consumers = maps.Clone(c.Consumers)
	for name, s := range c.Consumers {
		c.Consumers[name] = s.WithDefaults()
	}
	if c.Recheck == 0 {
		c.Recheck = defaultRecheck
	}
	if c.MaxPushBytes == 0 {
		c.MaxPushBytes = defaultMaxPushBytes
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = transport.DefaultDrainTimeout
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.Propagator == nil {
		c.Propagator = otel.GetTextMapPropagator() // passes on to whatever is set later
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports everything that is wrong with the configuration. It expects one that has its defaults.
func (c Config) Validate() error {
	var errs []error
	if c.ProjectID == "" {
		errs = append(errs, errors.New("Config.ProjectID is empty: want a Google Cloud project, here or in PUBSUB_PROJECT_ID or GOOGLE_CLOUD_PROJECT"))
	}
	if c.Endpoint != "" && !isEndpoint(c.Endpoint) {
		errs = append(errs, fmt.Errorf("Config.Endpoint is %q: want host:port, such as europe-west1-pubsub.googleapis.com:443", c.Endpoint))
	}
	errs = append(errs, c.Topic.validate("Config.Topic"), c.Subscription.validate("Config.Subscription"))
	for _, topic := range slices.Sorted(maps.Keys(c.Schemas)) {
		field := fmt.Sprintf("Config.Schemas[%q]", topic)
		if err := wire.CheckTopic(topic); err != nil {
			errs = append(errs, fmt.Errorf("%s is of no topic: %w", field, err))
		}
		errs = append(errs, c.Schemas[topic].validate(field))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Consumers)) {
		field := fmt.Sprintf("Config.Consumers[%q]", name)
		if err := transport.ValidateHandler(name); err != nil {
			errs = append(errs, fmt.Errorf("%s is of no consumer: %w", field, err))
		}
		errs = append(errs, c.Consumers[name].validate(field))
	}
	if c.Resources < CreateMissing || c.Resources > Update {
		errs = append(errs, fmt.Errorf("Config.Resources is %s: want CreateMissing, CheckOnly or Update", c.Resources))
	}
	if c.Recheck < 0 {
		errs = append(errs, fmt.Errorf("Config.Recheck is %s: want more than 0, or 0 for the default of %s", c.Recheck, defaultRecheck))
	}
	if c.MaxPushBytes != 0 && c.MaxPushBytes < push.MaxBodyBytes {
		errs = append(errs, fmt.Errorf("Config.MaxPushBytes is %d: want %d or more, or 0 for the default of %d", c.MaxPushBytes, push.MaxBodyBytes, defaultMaxPushBytes))
	}
	if c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("Config.DrainTimeout is %s: want more than 0, or 0 for the default of %s", c.DrainTimeout, transport.DefaultDrainTimeout))
	}
	return errors.Join(errs...)
}

// subscription returns the settings of the consumer's subscriptions.
func (c Config) subscription(consumer string) SubscriptionConfig {
	if s, ok := c.Consumers[transport.HandlerOf(consumer)]; ok {
		return s
	}
	return c.Subscription
}

func isEndpoint(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.Contains(host, "/") {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}
