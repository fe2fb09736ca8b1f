// Package transport is the contract that each broker fulfils, so that a service swaps Google Cloud Pub/Sub, Apache
// Kafka and the in-memory transport by configuration.
//
// The contract is Watermill's Publisher and Subscriber, plus what those two interfaces lack: an ordering key for each event
// ([SetKey]), one result per message of a batch ([BatchPublisher]), the limits ([Limits]) and abilities ([Features]) of a broker,
// and control over a single delivery ([Delivery]).
package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Transport connects a service to one broker. It owns the broker's client. Closing the transport closes all publishers and
// subscribers that it has returned. All methods may be called concurrently.
type Transport interface {
	// Name is the broker's short name, as in a configuration: "pubsub", "kafka", "memory".
	Name() string

	// Publisher returns the transport's shared publisher. Its Close does nothing, because Watermill's router closes
	// the publisher of a stopping handler even where other handlers share it. It should implement BatchPublisher.
	Publisher() (message.Publisher, error)

	// Subscriber returns a subscriber that consumes as cfg.Consumer. Closing the subscriber stops the intake and closes the channels
	// of its messages. Close returns after running handlers have finished and their acks have reached the broker. Until then, but at
	// most for the transport's drain timeout, the contexts of these messages stay alive. Messages that no handler has taken go back
	// to the broker.
	Subscriber(cfg SubscriberConfig) (message.Subscriber, error)

	// Features tells what the broker can do.
	Features() Features

	// Close closes every subscriber, flushes the publisher and releases the client. Further calls do nothing and return the result
	// of the first.
	Close() error
}

// Pinger is implemented by transports that can ask whether their broker answers. Ping fails if the broker no longer accepts the
// credentials. A topic that is missing, or that may not be listed, is not an error.
type Pinger interface {
	Ping(ctx context.Context) error
}

// PushServer is implemented by transports whose broker delivers messages by HTTP requests to the service.
type PushServer interface {
	// PushHandler returns the handler of the broker's requests. The handler checks that a request comes from the broker.
	PushHandler() http.Handler
	// PushPaths returns the paths under which to mount PushHandler, escaped, without duplicates and without a slash at the end. The
	// path of a request has one more element. The result is empty if no consumer is configured for push.
	PushPaths() []string
}

// DefaultDrainTimeout is how long a closing subscriber waits for running handlers if the configuration sets no other time.
const DefaultDrainTimeout = 30 * time.Second

// DefaultConcurrency is how many messages a subscriber handles at once if SubscriberConfig does not set a number. It is well
// below the size of a usual connection pool, because each handler under a claim holds one connection.
const DefaultConcurrency = 10

// SubscriberConfig describes one consumer of events.
type SubscriberConfig struct {
	// Consumer names the group that shares the messages of a topic: each message goes to one subscriber of each consumer. Letters,
	// digits, "_", "-" and ".", starting with a letter. The part after the last "." is the name of the handler; the transport's
	// configuration has its settings under this name. Required.
	Consumer string

	// Concurrency is the largest number of messages that one call of Subscribe has delivered and that are neither acked nor nacked.
	// Under a claim each of them holds a connection: claim.Concurrency returns how many a pool allows. Default: DefaultConcurrency.
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

// ValidateConsumer returns an error if a consumer must not have this name. The error describes valid names and does not repeat
// the name.
func ValidateConsumer(name string) error {
	if !consumerPattern.MatchString(name) {
		return errors.New(`want 1 to 201 letters, digits, "_", "-" and ".", starting with a letter and not ending with "."`)
	}
	return nil
}

// ValidateHandler returns an error if a handler must not have this name. The error describes valid names and does not repeat the
// name.
func ValidateHandler(name string) error {
	if !handlerPattern.MatchString(name) {
		return errors.New(`want 1 to 100 letters, digits, "_" and "-", starting with a letter`)
	}
	return nil
}

// HandlerOf returns the part of a consumer's name after the last ".".
func HandlerOf(consumer string) string { return consumer[strings.LastIndexByte(consumer, '.')+1:] }

// Features describes what a broker can do beyond at-least-once delivery, which every broker has.
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

// ErrClosed is returned by a closed transport and by its publishers and subscribers. Nothing was published or subscribed. Open a
// new transport.
var ErrClosed = errors.New("transport is closed")

// ErrNotSent is the result of a message that PublishBatch did not send because an earlier message of its key failed. The message
// itself may be valid: publish it again after the failed one.
var ErrNotSent = errors.New("not sent: an earlier message of the same key failed")

// BatchPublisher is implemented by publishers that send many messages at once.
type BatchPublisher interface {
	message.Publisher

	// PublishBatch publishes msgs to topic and returns one result per message, in the order of msgs. A nil result means that the
	// broker has acknowledged the message. Messages of one key are sent in the given order. If one of them fails, the later ones of
	// its key are not sent and their result is ErrNotSent. If ctx ends, each message that has no result yet gets the context's
	// error; it may or may not have been sent.
	PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error
}

// ErrRejected is wrapped by the result of a message that the broker refuses because of the message itself: too large or
// malformed, for example. Sending it again cannot succeed.
var ErrRejected = errors.New("the broker refuses the message")

// ErrUnavailable is wrapped by the result of a message that was not sent, or may not have been sent, because the broker or the
// topic cannot be reached. The message itself may be valid: send it again later.
var ErrUnavailable = errors.New("the broker is unavailable")
