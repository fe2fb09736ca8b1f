package transport

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Origin is what a broker knows of a message and its producer did not send: on Kafka topic, partition, offset and timestamp.
// Each redelivery has the same. It is no metadata, lest it is published again with them. The names are the transport's.
type Origin map[string]string

// OriginTopic is the name of the topic in the Origin of a transport that takes patterns.
const OriginTopic = "topic"

// Originated is implemented by deliveries whose transport tells where their messages come from.
type Originated interface {
	Delivery

	// Origin returns the message's. The caller may keep it.
	Origin() Origin

	// EventIDError tells why the message has no event ID, and how to mend that; nil where it has one.
	EventIDError() error
}

// OriginFrom returns the origin of the message whose context this is; nil where the transport does not tell.
func OriginFrom(ctx context.Context) Origin {
	if d, ok := DeliveryFrom(ctx).(Originated); ok {
		return d.Origin()
	}
	return nil
}

// EventIDErrorFrom tells why the message whose context this is has no event ID; nil where it has one, or the transport does
// not tell.
func EventIDErrorFrom(ctx context.Context) error {
	if d, ok := DeliveryFrom(ctx).(Originated); ok {
		return d.EventIDError()
	}
	return nil
}

// EventIDFinder is implemented by subscribers that can find the ID of a message which was delivered without one and kept, as
// they would if it were delivered now: their configuration may have changed since. A claim asks it when a dead letter is
// replayed.
type EventIDFinder interface {
	FindEventID(msg *message.Message, origin Origin) (string, error)
}
