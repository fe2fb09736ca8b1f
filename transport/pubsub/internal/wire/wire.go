// Package wire converts messages to and from Pub/Sub's, and finds what identifies one. It does no I/O.
package wire

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// Limits is what a Pub/Sub message can carry (https://cloud.google.com/pubsub/quotas#resource_limits). The message's size is the limit of
// a publish request, 10 MB, minus 2,000 bytes: encoding, the ID's attribute, the topic's name and a trace take up to 1,900. The event's
// ID takes one of the 100 attributes.
var Limits = transport.Limits{
	Topic:              regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._~+%-]{2,254}$`),
	MessageBytes:       9_998_000,
	KeyBytes:           1024,
	MetadataEntries:    MaxAttributes - 1,
	MetadataKeyBytes:   256,
	MetadataValueBytes: 1024,
}

const (
	// MaxAttributes is how many attributes a message may have.
	MaxAttributes = 100
	// IDAttribute carries the event's ID. watermill-googlecloud uses the same attribute.
	IDAttribute = "_watermill_message_uuid"
	// reservedPrefix begins the names that Pub/Sub reserves: it refuses them in attributes and topics.
	reservedPrefix = "goog"
	// clientPrefix begins the attributes that Google's clients add themselves, for traces and schemas.
	clientPrefix = "googclient_"
)

// Check reports why the message cannot be published, as errors that wrap transport.ErrLimit.
func Check(msg *message.Message) error {
	errs := []error{messageLimits.Check("", msg), transport.CheckText(msg)}
	for name := range msg.Metadata {
		switch {
		case name == "":
			errs = append(errs, fmt.Errorf("%w: a metadata name is empty, Pub/Sub wants 1 byte or more", transport.ErrLimit))
		case name == IDAttribute || strings.HasPrefix(name, reservedPrefix):
			errs = append(errs, fmt.Errorf("%w: metadata name %.40q is reserved: %q carries the ID, Pub/Sub keeps what begins with %q", transport.ErrLimit, name, IDAttribute, reservedPrefix))
		}
	}
	return errors.Join(errs...)
}

// messageLimits is Limits without the topic, which is checked once for a batch.
var messageLimits = func() transport.Limits {
	l := Limits
	l.Topic = nil
	return l
}()

// CheckTopic returns an error that wraps transport.ErrLimit if no topic can have the name.
func CheckTopic(topic string) error {
	if !Limits.Topic.MatchString(topic) || strings.HasPrefix(topic, reservedPrefix) {
		return fmt.Errorf("%w: topic %q: want 3 to 255 letters, digits, \"-._~+%%\", starting with a letter and not with %q", transport.ErrLimit, topic, reservedPrefix)
	}
	return nil
}

// Marshal returns Pub/Sub's message, which shares the payload with msg: Google's client does not change it.
func Marshal(msg *message.Message) *pubsub.Message {
	attributes := make(map[string]string, len(msg.Metadata)+1)
	for name, value := range msg.Metadata {
		if name != transport.KeyMetadata {
			attributes[name] = value
		}
	}
	attributes[IDAttribute] = msg.UUID
	return &pubsub.Message{Data: msg.Payload, Attributes: attributes, OrderingKey: transport.Key(msg)}
}

// Unmarshal never fails. A message without an ID is delivered with an empty one, and the layer above decides what to do with it. What
// Pub/Sub knows of the message, such as its publish time, is not put into the metadata: code that copies the metadata would publish it
// again.
func Unmarshal(m *pubsub.Message) *message.Message {
	msg := message.NewMessage(m.Attributes[IDAttribute], m.Data)
	for name, value := range m.Attributes {
		if name != IDAttribute && name != transport.KeyMetadata && !strings.HasPrefix(name, clientPrefix) {
			msg.Metadata[name] = value
		}
	}
	transport.SetKey(msg, m.OrderingKey)
	return msg
}
