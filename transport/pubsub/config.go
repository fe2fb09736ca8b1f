package pubsub

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"google.golang.org/api/option"

	"github.com/millrace-go/millrace/transport"
)

// The bounds that Pub/Sub sets for an ack deadline, and our default.
const (
	minAckDeadline     = 10 * time.Second
	maxAckDeadline     = 600 * time.Second
	defaultAckDeadline = 20 * time.Second
)

const defaultPrefetch = 100

// Config configures the transport. The zero value works on Google Cloud and with the emulator.
type Config struct {
	// ProjectID is the Google Cloud project. Required.
	// Default: PUBSUB_PROJECT_ID, then GOOGLE_CLOUD_PROJECT, then, when PUBSUB_EMULATOR_HOST is set, "millrace".
	ProjectID string

	// AckDeadline is how long a message stays leased to a consumer that has stopped renewing: the messages of a killed
	// process return within it. Leases of a living one are renewed for up to an hour, however long the deadline.
	// Whole seconds from 10 s to 600 s. Default: 20 s.
	AckDeadline time.Duration

	// Prefetch is how many messages beyond SubscriberConfig.Concurrency a subscription holds. They are what handlers
	// find ready: acks go out every 100 ms, and Pub/Sub sends no more than Concurrency + Prefetch unacked messages, so
	// a subscription handles at most about ten times as many per second. They are also what other processes do not
	// get meanwhile, so slow handlers want few. And they are the room in which nacked messages wait for their retry
	// (Delivery.RetryAfter), with the later ones of their keys, before these keep other messages waiting.
	// Default: 100.
	Prefetch int

	// ExactlyOnce creates subscriptions with Pub/Sub's exactly-once delivery: while a message is leased it is not
	// delivered twice, and an ack that came too late is logged and counted. It is slower, regional, and no substitute
	// for the claim. It has no effect on subscriptions that exist. Default: false.
	ExactlyOnce bool

	// DrainTimeout is how long a closing subscriber waits for running handlers. After that their contexts are
	// cancelled and their messages go back. Default: transport.DefaultDrainTimeout (30 s).
	DrainTimeout time.Duration

	// ClientOptions are handed to Google's client: credentials, endpoint, interceptors. Default: none.
	ClientOptions []option.ClientOption

	// Logger receives what happens in the background. Default: slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c Config) WithDefaults() Config {
	if c.ProjectID == "" {
		c.ProjectID = cmp.Or(os.Getenv("PUBSUB_PROJECT_ID"), os.Getenv("GOOGLE_CLOUD_PROJECT"))
	}
	if c.ProjectID == "" && os.Getenv("PUBSUB_EMULATOR_HOST") != "" {
		c.ProjectID = "millrace"
	}
	if c.AckDeadline == 0 {
		c.AckDeadline = defaultAckDeadline
	}
	if c.Prefetch == 0 {
		c.Prefetch = defaultPrefetch
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = transport.DefaultDrainTimeout
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
	if c.AckDeadline < minAckDeadline || c.AckDeadline > maxAckDeadline || c.AckDeadline%time.Second != 0 {
		errs = append(errs, fmt.Errorf("Config.AckDeadline is %s: want whole seconds from %s to %s", c.AckDeadline, minAckDeadline, maxAckDeadline))
	}
	if c.Prefetch < 0 {
		errs = append(errs, fmt.Errorf("Config.Prefetch is %d: want 1 or more, or 0 for the default of %d", c.Prefetch, defaultPrefetch))
	}
	if c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("Config.DrainTimeout is %s: want more than 0, or 0 for the default of %s", c.DrainTimeout, transport.DefaultDrainTimeout))
	}
	return errors.Join(errs...)
}
