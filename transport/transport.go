// Package transport is the contract that each broker fulfils, so that a service swaps Google Cloud Pub/Sub, Apache
// Kafka and the in-memory transport by configuration.
//
// The contract is Watermill's Publisher and Subscriber, plus what those two cannot say: an ordering key for each event
// ([SetKey]), one result per message of a batch ([BatchPublisher]), what a broker can carry ([Limits]) and do
// ([Features]), and the fate of one delivery ([Delivery]).
package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Transport connects a service to one broker. It owns the client: the publishers and subscribers that it hands out are
// closed with it. All methods may be called concurrently.
type Transport interface {
	// Name is the broker's short name, as in a configuration: "pubsub", "kafka", "memory".
	Name() string

	// Publisher returns the transport's shared publisher. Its Close does nothing, because Watermill's router closes
	// the publisher of a stopping handler even where other handlers share it. It should implement BatchPublisher.
	Publisher() (message.Publisher, error)

	// Subscriber returns a subscriber that consumes as cfg.Consumer. Closing it stops the intake, closes the channels
	// of its messages, lets running handlers finish and their acks reach the broker, and then returns. The messages'
	// contexts stay alive meanwhile, until the transport's drain timeout ends. What no handler has taken goes back.
	Subscriber(cfg SubscriberConfig) (message.Subscriber, error)

	// Features tells what the broker can do.
	Features() Features

	// Close closes every subscriber, flushes the publisher and releases the client. A second call does nothing, and returns
	// the same.
	Close() error
}

// Pinger is implemented by transports that can ask whether their broker answers. A credential that is no longer taken is an
// error; that a topic is missing, or may not be listed, is none.
type Pinger interface {
	Ping(ctx context.Context) error
}

// PushServer is implemented by transports whose broker calls the service, by HTTP.
type PushServer interface {
	// PushHandler serves the broker's requests. It checks that they come from the broker.
	PushHandler() http.Handler
	// PushPaths are the paths under which to mount it, escaped, each once and without a slash at its end. A request's path has one element
	// more. There are none if no consumer is configured for push.
	PushPaths() []string
}

// DefaultConcurrency is how many messages of a subscriber are handled at once when SubscriberConfig does not say: well
// below the size of a usual connection pool, because each handler under a claim holds one connection.
const DefaultConcurrency = 10

// SubscriberConfig describes one consumer of events.
type SubscriberConfig struct {
	// Consumer names the group that shares the messages of a topic: each message goes to one subscriber of each
	// consumer. Letters, digits, "_", "-" and ".", starting with a letter. What follows the last "." is the handler, under
	// which the transport's configuration has settings. Required.
	Consumer string

	// Concurrency is the largest number of messages that are delivered and neither acked nor nacked, for each call of
	// Subscribe. Under a claim each of them holds a connection: claim.Concurrency tells how many a pool carries.
	// Default: DefaultConcurrency.
	Concurrency int

	// Ordered delivers the messages of one key one after another, in the order in which they were published.
	// Default: false.
	Ordered bool
}

var (
	consumerPattern = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_.-]{0,199}[A-Za-z0-9_-])?$`) // service.handler
	handlerPattern  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,99}$`)
)

// WithDefaults returns the configuration with every zero field set to its default.
func (c SubscriberConfig) WithDefaults() SubscriberConfig {
	if c.Concurrency == 0 {
		c.Concurrency = DefaultConcurrency
	}
	return c
}

// Validate reports everything that is wrong with the configuration.
func (c SubscriberConfig) Validate() error {
	var errs []error
	if err := ValidateConsumer(c.Consumer); err != nil {
		errs = append(errs, fmt.Errorf("SubscriberConfig.Consumer is %q: %w", c.Consumer, err))
	}
	if c.Concurrency < 0 {
		errs = append(errs, fmt.Errorf("SubscriberConfig.Concurrency is %d: want 1 or more, or 0 for the default of %d", c.Concurrency, DefaultConcurrency))
	}
	return errors.Join(errs...)
}

// ValidateConsumer reports whether a consumer may have the name. The error says what is wanted, and does not repeat the name.
func ValidateConsumer(name string) error {
	if !consumerPattern.MatchString(name) {
		return errors.New(`want 1 to 201 letters, digits, "_", "-" and ".", starting with a letter and not ending with "."`)
	}
	return nil
}

// ValidateHandler reports whether a handler may have the name. The error says what is wanted, and does not repeat the name.
func ValidateHandler(name string) error {
	if !handlerPattern.MatchString(name) {
		return errors.New(`want 1 to 100 letters, digits, "_" and "-", starting with a letter`)
	}
	return nil
}

// HandlerOf returns what follows the last "." in the name of a consumer.
func HandlerOf(consumer string) string { return consumer[strings.LastIndexByte(consumer, '.')+1:] }

// Features tells what a broker can do beyond at-least-once delivery, which all of them have.
type Features struct {
	// Ordered: SubscriberConfig.Ordered is honoured.
	Ordered bool
	// Attempts: Delivery.Attempt counts the deliveries of a message.
	Attempts bool
	// DelayedRedelivery: Delivery.RetryAfter is honoured.
	DelayedRedelivery bool
	// Persistent: messages outlive the process, so that relays and consumers may run in processes of their own.
	Persistent bool
	// Limits is what one message may carry.
	Limits Limits
}

// ErrClosed is returned by the methods of a transport, and of what it handed out, after it was closed. Nothing was
// published or subscribed; open a new transport.
var ErrClosed = errors.New("transport is closed")

// ErrNotSent is the result of a message that PublishBatch held back because an earlier message of its key failed. It
// says nothing against the message itself: publish it again after the one that failed.
var ErrNotSent = errors.New("not sent: an earlier message of the same key failed")

// BatchPublisher is implemented by publishers that send many messages at once.
type BatchPublisher interface {
	message.Publisher

	// PublishBatch publishes msgs to topic and returns one result per message, at the message's place; nil means
	// that the broker has acknowledged it. Messages of one key are sent in the order given; after one of them
	// failed, the later ones of that key are not sent and their result is ErrNotSent. When ctx ends, what has no
	// result yet gets the context's error: it may or may not have been sent.
	PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error
}

// ErrRejected is wrapped by the result of a message that the broker refuses for what it is: too large, malformed. Sending
// it again cannot succeed.
var ErrRejected = errors.New("the broker refuses the message")

// ErrUnavailable is wrapped by the result of a message that was not sent, or perhaps not, because the broker or the topic
// is out of reach: an outage, which says nothing against the message. Send it again later.
var ErrUnavailable = errors.New("the broker is unavailable")
