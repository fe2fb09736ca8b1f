package pubsub

import (
	"errors"
	"fmt"
	"net/url"
	pathpkg "path"
	"strings"
	"time"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// The bounds that Pub/Sub sets, and our defaults.
const (
	minAckDeadline     = 10 * time.Second
	maxAckDeadline     = 600 * time.Second
	defaultAckDeadline = setting.DefaultAckDeadline

	defaultPrefetch = 500

	defaultMaxOutstandingBytes = 64 << 20
	minMaxOutstandingBytes     = 10_000_000 // the largest message

	maxStreams = 100

	maxFilterBytes = 256

	minMaxAttempts     = 5
	maxMaxAttempts     = 100
	defaultMaxAttempts = 10

	maxRetry        = 600 * time.Second
	defaultRetryMin = setting.DefaultRetryMin
	defaultRetryMax = setting.DefaultRetryMax
)

// SubscriptionConfig configures the subscription of a consumer. Unless a field says otherwise, changing it later changes
// subscriptions that exist only under Update; else the difference is logged.
type SubscriptionConfig struct {
	// AckDeadline is how long a message stays leased to a process that no longer renews the lease: Pub/Sub redelivers the
	// messages of a killed process within it. A running process renews its leases for up to an hour, whatever the
	// deadline, and those of an ordered consumer as long as it retries. For a push subscription it is how long a request may
	// take. Whole seconds from 10 s to 600 s. Default: 20 s.
	AckDeadline time.Duration

	// Prefetch is how many messages beyond SubscriberConfig.Concurrency a subscription holds. They are what handlers
	// find ready: acks go out every 100 ms, and Pub/Sub sends no more than Concurrency + Prefetch unacked messages, so
	// a subscription handles at most about ten times as many per second. They are also what other processes do not
	// get meanwhile, so slow handlers want few. And they are the room in which nacked messages wait for their retry
	// (Delivery.RetryAfter), with the later ones of their keys, before these keep other messages waiting. It is a
	// setting of the process, not of the subscription, and push has none. Default: 500.
	Prefetch int

	// MaxOutstandingBytes is how many bytes of messages a subscription holds. Each consumer of each topic in a process has as
	// much. It is a setting of the process, not of the subscription; for push it is Config.MaxPushBytes. 10 MB, the largest
	// message, or more. Default: 64 MiB.
	MaxOutstandingBytes int

	// Streams is how many streams a process opens for a subscription. One carries about 10 MB/s; more let Pub/Sub send more
	// messages than the process holds, which wait in its buffers. It is a setting of the process, and push has none. 1 to 100.
	// Default: 1.
	Streams int

	// Labels are labels of the subscription, for bills and lists. Other labels of a subscription that exists stay. In a
	// file they are one text: name=value,name=value. Default: none.
	Labels Labels

	// ExactlyOnce enables Pub/Sub's exactly-once delivery: Pub/Sub does not redeliver a message while it is leased, and
	// late acks are logged and counted. It is slower, regional, not available with push, and no substitute for the claim.
	// Default: false.
	ExactlyOnce bool

	// Filter selects messages by their attributes, in Pub/Sub's filter language; the others count as acked. An event's
	// metadata are its attributes. Up to 256 bytes. Pub/Sub cannot change it: a subscription that exists with another
	// filter is an error. Default: "", all messages.
	Filter string

	// EventID says where the event's ID is in messages that foreign publishers send: EventIDFromAttribute, EventIDFromJSON or
	// EventIDFromMessageID; in a file, header:NAME, json:PATH or message_id. It is a setting of the process, not of the
	// subscription. Default: the attribute in which Millrace and watermill-googlecloud write it. Under a claim a message
	// without an ID becomes a dead letter.
	EventID transport.EventIDSource

	// DeadLetter is where messages go that were delivered too often or were rejected. Default: none, a message is delivered
	// for ever, and a rejected one goes to transport.DeadLetterTopic.
	DeadLetter DeadLetter

	// Retry is how long Pub/Sub waits before it delivers a nacked message again. Default: it does not wait. Then this
	// transport holds a nacked message for 100 ms, so that a handler that fails is no hot loop.
	Retry Retry

	// Push makes Pub/Sub call the service. Default: nil, the service pulls.
	Push *Push
}

// DeadLetter is a subscription's dead-letter policy. It makes Pub/Sub count deliveries: only with it does
// Delivery.Attempt tell. Contention and other wishes of Delivery.RetryAfter count for nothing, because they are retried
// within the process.
//
// It is Pub/Sub that forwards, on a best effort and with at least MaxAttempts attempts, as its service agent
// (service-<project number>@gcp-sa-pubsub.iam.gserviceaccount.com). That needs roles/pubsub.publisher on the dead-letter
// topic and roles/pubsub.subscriber on the subscription; without them messages stay and are delivered for ever.
type DeadLetter struct {
	// Topic is the dead-letter topic, in the same project. It is created like any other. What arrives at a topic without
	// a subscription is lost, so one named "<topic>.dead-letters" is created where there is none: subscribe as consumer
	// "dead-letters" to read it. Under CheckOnly its absence is logged. Default: "", no policy.
	Topic string
	// MaxAttempts is after how many deliveries a message goes there: 5 to 100. Default: 10.
	MaxAttempts int
}

// Retry is a subscription's retry policy: the wait doubles from Min to Max with the deliveries of a message. It is for
// messages that went back to Pub/Sub, which those of an ordered consumer do not while it runs.
type Retry struct {
	// Min is the first wait: up to 600 s. Default: 10 s when Max is set.
	Min time.Duration
	// Max is the longest: from Min to 600 s. Default: 600 s when Min is set.
	Max time.Duration
}

// Push configures a push subscription: Pub/Sub sends each message to the service in an HTTP request.
//
// A consumer that exists goes over from pull to push, and back, under Update: the first process with the new
// configuration changes the subscription for all of them, and one that starts with the old one changes it back. Processes
// that still pull refuse pushes (404), and Pub/Sub counts each as a delivery: with DeadLetter, messages that no handler
// has seen would go to the dead-letter topic. So see to it that requests to Endpoint reach only processes with the new
// configuration, or stop the others first: the subscription keeps what is published meanwhile.
type Push struct {
	// Endpoint is the public URL under which Transport.PushHandler is mounted. A service of package framework mounts it by itself.
	// A subscription's endpoint is this, "/" and its ID. It must be HTTPS, unless AllowUnauthenticated is set. Required.
	Endpoint string
	// Path is the path of requests when they reach the service, where a proxy changes it. "/" is the root: there, the route of push
	// conflicts with routes of one element that name no method. Default: that of Endpoint, which then must have one.
	Path string
	// ServiceAccount is the e-mail address of the account whose OIDC token Pub/Sub sends and the handler asks for.
	// Required, unless AllowUnauthenticated is set.
	ServiceAccount string
	// Audience is the audience of the token. Default: Endpoint.
	Audience string
	// Unwrapped sends the message's data as the request's body and its attributes as headers, instead of both as JSON.
	Unwrapped bool
	// AllowUnauthenticated lets anyone who can reach the handler inject messages when there is no ServiceAccount. It is
	// for the emulator, which sends no tokens, and for tests. Default: false.
	AllowUnauthenticated bool
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c SubscriptionConfig) WithDefaults() SubscriptionConfig {
	if c.AckDeadline == 0 {
		c.AckDeadline = defaultAckDeadline
	}
	if c.Prefetch == 0 {
		c.Prefetch = defaultPrefetch
	}
	if c.MaxOutstandingBytes == 0 {
		c.MaxOutstandingBytes = defaultMaxOutstandingBytes
	}
	if c.Streams == 0 {
		c.Streams = 1
	}
	if c.DeadLetter.Topic != "" && c.DeadLetter.MaxAttempts == 0 {
		c.DeadLetter.MaxAttempts = defaultMaxAttempts
	}
	if c.Retry != (Retry{}) {
		if c.Retry.Min == 0 {
			c.Retry.Min = defaultRetryMin
		}
		if c.Retry.Max == 0 {
			c.Retry.Max = defaultRetryMax
		}
	}
	if c.Push != nil {
		push := *c.Push
		if push.Audience == "" {
			push.Audience = push.Endpoint
		}
		c.Push = &push
	}
	return c
}

// validate reports everything that is wrong, naming fields as those of path.
func (c SubscriptionConfig) validate(path string) error {
	var errs []error
	wrong := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s.%s is %w", path, field, fmt.Errorf(format, args...)))
	}
	if c.AckDeadline < minAckDeadline || c.AckDeadline > maxAckDeadline || c.AckDeadline%time.Second != 0 {
		wrong("AckDeadline", "%s: want whole seconds from %s to %s", c.AckDeadline, minAckDeadline, maxAckDeadline)
	}
	if c.Prefetch < 0 {
		wrong("Prefetch", "%d: want 1 or more, or 0 for the default of %d", c.Prefetch, defaultPrefetch)
	}
	if c.MaxOutstandingBytes != 0 && c.MaxOutstandingBytes < minMaxOutstandingBytes {
		wrong("MaxOutstandingBytes", "%d: want %d or more, or 0 for the default of %d", c.MaxOutstandingBytes, minMaxOutstandingBytes, defaultMaxOutstandingBytes)
	}
	if c.Streams < 0 || c.Streams > maxStreams {
		wrong("Streams", "%d: want 1 to %d, or 0 for the default of 1", c.Streams, maxStreams)
	}
	if err := c.Labels.validate(); err != nil {
		wrong("Labels", "%q: %w", c.Labels, err)
	}
	if len(c.Filter) > maxFilterBytes {
		wrong("Filter", "%d bytes long: want up to %d", len(c.Filter), maxFilterBytes)
	}
	if err := c.EventID.Validate(EventIDFromMessageID(), wire.IDAttribute); err != nil {
		wrong("EventID", "%w", err)
	}
	switch d := c.DeadLetter; {
	case d.Topic == "" && d.MaxAttempts != 0:
		wrong("DeadLetter.MaxAttempts", "%d without DeadLetter.Topic: want a topic, or 0", d.MaxAttempts)
	case d.Topic != "" && (d.MaxAttempts < minMaxAttempts || d.MaxAttempts > maxMaxAttempts):
		wrong("DeadLetter.MaxAttempts", "%d: want %d to %d, or 0 for the default of %d", d.MaxAttempts, minMaxAttempts, maxMaxAttempts, defaultMaxAttempts)
	}
	if c.DeadLetter.Topic != "" {
		if err := wire.CheckTopic(c.DeadLetter.Topic); err != nil {
			wrong("DeadLetter.Topic", "%q: %w", c.DeadLetter.Topic, err)
		}
	}
	if c.Retry.Min < 0 || c.Retry.Min > maxRetry {
		wrong("Retry.Min", "%s: want up to %s", c.Retry.Min, maxRetry)
	}
	if c.Retry.Max < c.Retry.Min || c.Retry.Max > maxRetry {
		wrong("Retry.Max", "%s: want %s (Retry.Min) to %s", c.Retry.Max, c.Retry.Min, maxRetry)
	}
	if c.Push != nil {
		if c.ExactlyOnce {
			wrong("ExactlyOnce", "true with Push: Pub/Sub has exactly-once delivery for pull subscriptions only")
		}
		errs = append(errs, c.Push.validate(path+".Push"))
	}
	return errors.Join(errs...)
}

func (p Push) validate(path string) error {
	var errs []error
	endpoint, err := url.Parse(p.Endpoint)
	switch {
	case err != nil || endpoint.Host == "" || (endpoint.Scheme != "http" && endpoint.Scheme != "https"):
		errs = append(errs, fmt.Errorf("%s.Endpoint is %q: want an absolute URL, https://…", path, p.Endpoint))
	case endpoint.Scheme == "http" && !p.AllowUnauthenticated:
		errs = append(errs, fmt.Errorf("%s.Endpoint is %q: want https, which the token must not travel without; http is for AllowUnauthenticated", path, p.Endpoint))
	case endpoint.RawQuery != "" || endpoint.Fragment != "" || endpoint.User != nil || strings.HasSuffix(endpoint.Path, "/"):
		errs = append(errs, fmt.Errorf("%s.Endpoint is %q: want no user, query, fragment or slash at its end, because \"/\" and the subscription's ID follow", path, p.Endpoint))
	case p.Path == "" && endpoint.Path != "" && endpoint.Path != pathpkg.Clean(endpoint.Path):
		errs = append(errs, fmt.Errorf("%s.Endpoint is %q: want a path without \"//\", \".\" and \"..\", which no route has: %q; "+
			"or Path, the path that requests have when they reach the service", path, p.Endpoint, pathpkg.Clean(endpoint.Path)))
	}
	switch {
	case p.Path == "" && err == nil && endpoint.Host != "" && endpoint.Path == "":
		errs = append(errs, fmt.Errorf("%s.Endpoint is %q, without a path: want one, such as /push, or Path, the path that requests have when they reach the service", path, p.Endpoint))
	case p.Path != "" && (p.Path[0] != '/' || p.Path != "/" && strings.HasSuffix(p.Path, "/")):
		errs = append(errs, fmt.Errorf("%s.Path is %q: want a slash at its beginning, and none at its end", path, p.Path))
	case p.Path != "" && p.Path != pathpkg.Clean(p.Path):
		errs = append(errs, fmt.Errorf("%s.Path is %q: want a path without \"//\", \".\" and \"..\", which no route has: %q", path, p.Path, pathpkg.Clean(p.Path)))
	}
	switch {
	case p.ServiceAccount == "" && !p.AllowUnauthenticated:
		errs = append(errs, fmt.Errorf("%s.ServiceAccount is empty: want the e-mail address of the account whose token Pub/Sub sends; without one, anybody could inject messages", path))
	case p.ServiceAccount != "" && strings.IndexByte(p.ServiceAccount, '@') < 1:
		errs = append(errs, fmt.Errorf("%s.ServiceAccount is %q: want an e-mail address", path, p.ServiceAccount))
	}
	return errors.Join(errs...)
}
